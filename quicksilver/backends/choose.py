"""Picks the backend of a device: CUDA kernels and graphs, compiled CPU loops, or plain torch if neither applies."""

from __future__ import annotations

import logging
from importlib.util import find_spec

import torch

from quicksilver.backends.base import Backend, MemoryNeeds
from quicksilver.backends.config import MAX_TREE_ROWS, BackendConfig
from quicksilver.backends.torch.backend import TorchBackend
from quicksilver.model.attention import PagedCache
from quicksilver.model.gemma import DiffusionGemma
from quicksilver.model.moe import set_expert_kernel
from quicksilver.model.transformer import Transformer

log = logging.getLogger(__name__)

# Extra pages per request on a GPU, for rounds that are queued on the device before the host has read earlier results.
SPARE_PAGES = 8


def make_backend(model: Transformer, cache: PagedCache, config: BackendConfig) -> Backend:
    """May take minutes on a GPU: kernels are compiled and graphs are captured before it returns."""
    # Imports are local: each backend loads its own compiler.
    reason = "cuda_graphs is off" if not config.cuda_graphs else _cuda_refusal(model, cache)
    if reason is None and isinstance(model, DiffusionGemma):
        from quicksilver.backends.cuda.build import build_canvas_backend

        return build_canvas_backend(model, cache, config)
    if reason is None:
        from quicksilver.backends.cuda.build import build_backend

        return build_backend(model, cache, config)
    if cache.k.is_cuda:
        log.warning("running without CUDA graphs: %s", reason)
        if config.cuda_graphs and model.config.moe is not None and find_spec("triton") is not None:
            from quicksilver.backends.cuda.kernels.experts import run_experts

            set_expert_kernel(model, run_experts)
    if _is_compiled_for_cpu(model):
        from quicksilver.backends.cpu.backend import CpuBackend

        return CpuBackend(model, cache, config.logit_rows)
    return TorchBackend(model, cache, config.logit_rows)


def kv_dtype(model: Transformer) -> torch.dtype:
    """The number format of keys and values in the cache."""
    return torch.float16 if _is_compiled_for_cpu(model) else model.dtype


def _is_compiled_for_cpu(model: Transformer) -> bool:
    """Whether the compiled CPU backend runs this model."""
    if model.weight_format != "int8":
        return False
    from quicksilver.backends.cpu.network import is_supported

    return is_supported(model)


def memory_needs(config: BackendConfig, device: torch.device) -> MemoryNeeds:
    """Memory that the backend needs in addition to the KV pages of requests; known before the cache is allocated."""
    if device.type != "cuda" or not config.cuda_graphs:
        return MemoryNeeds()
    # Scratch slots hold four draft trees of 16 rows, or one of the largest.
    return MemoryNeeds(scratch_slots=max(4 * 16, MAX_TREE_ROWS), spare_pages=SPARE_PAGES)


def _cuda_refusal(model: Transformer, cache: PagedCache) -> str | None:
    """Why the CUDA kernels cannot run this model here; None if they can."""
    if not cache.k.is_cuda:
        return "no GPU"
    if find_spec("triton") is None:
        return "Triton is not installed"
    if isinstance(model, DiffusionGemma):
        from quicksilver.backends.cuda.kernels import gemma_weights

        return gemma_weights.refusal(model)
    from quicksilver.backends.cuda.kernels.weights import refusal

    return refusal(model)
