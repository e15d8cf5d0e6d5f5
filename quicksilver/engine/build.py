"""Builds an Engine from loaded weights: memory plan, KV cache, backend and EngineInfo."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import torch

from quicksilver.backends.choose import kv_dtype, make_backend, memory_needs
from quicksilver.core import EngineInfo
from quicksilver.dialect import AUTOREGRESSIVE, Dialect
from quicksilver.engine.adapter_cache import AdapterCache, read_adapter
from quicksilver.engine.config import (
    EngineConfig,
    fitting_adapter_bytes,
    plan_decode_rows,
    plan_pages,
    plan_prompt_rows,
    plan_running,
)
from quicksilver.engine.engine import Engine
from quicksilver.engine.memory import free_memory
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from quicksilver.model.gemma import DiffusionGemma
from quicksilver.model.transformer import Transformer

STALE_PREFIX = "stale_prefix keeps keys and values of the prompt within a block, so this text is approximate"


def build_engine(model: Transformer, name: str, config: EngineConfig, base_sha256: str = "") -> Engine:
    """Allocates the KV cache on the device of the weights. `base_sha256` is that of the base file, if it is known."""
    device, dtype, dialect = model.device, model.dtype, model.config.dialect
    config = for_dialect(config, dialect)
    context_len = config.context_len or model.config.context_len
    is_cuda = device.type == "cuda"
    if is_cuda:
        config = replace(config, adapter_bytes=_adapter_bytes(model, config, context_len))
    num_pages = _num_pages(model, config, context_len)
    config = replace(config, max_running=plan_running(config, num_pages, is_cuda))
    config = replace(
        config,
        decode_rows=plan_decode_rows(config, dialect, is_cuda, model.config.fits_cuda_kernels),
        prompt_rows=plan_prompt_rows(config, is_cuda and model.config.fits_cuda_kernels),
        doubling_context=config.doubling_context or (0 if is_cuda else doubling_context(model.config)),
    )
    backend_config = config.for_backend(context_len, model.weight_format or "bfloat16")
    needs = memory_needs(backend_config, device)
    slots = (num_pages, config.page_size, device, kv_dtype(model), needs.scratch_slots)
    cache = PagedCache.allocate(model.config, *slots)
    # The backend may free matrices that it holds in another format.
    samples, weight_bytes = weight_samples(model), model.weight_bytes
    backend = make_backend(model.eval(), cache, backend_config)
    dtype_name = str(dtype).removeprefix("torch.")
    numerics = f"{type(backend).__name__} {model.weight_format or dtype_name} {config.matmul}"
    info = EngineInfo(
        model=name,
        family=model.config.family,
        vocab_size=model.config.vocab_size,
        context_len=context_len,
        max_canvas_len=_max_canvas_len(model, config),
        device=str(device),
        dtype=dtype_name,
        num_pages=num_pages,
        page_size=config.page_size,
        weight_bytes=weight_bytes,
        fingerprint=fingerprint(name, samples, f"{numerics}{' stale' * dialect.has_stale_prefix}"),
        decoders=dialect.decoders,
        default_decoder=dialect.default,
        other_decoders=dialect.others,
        score_pass_rows=config.score_pass_rows,
        supports_adapters=backend.supports_adapters,
        warning=STALE_PREFIX if dialect.has_stale_prefix else "",
    )
    network = model.config
    adapters = AdapterCache(
        lambda ref: read_adapter(ref, network, base_sha256, backend), config.adapter_bytes, backend.adapter_store
    )
    config = replace(config, spare_pages=config.spare_pages or needs.spare_pages)
    return Engine(backend, info, config, None, dialect, adapters if backend.supports_adapters else None)


def for_dialect(config: EngineConfig, dialect: Dialect) -> EngineConfig:
    """Pages of whole blocks, and canvases as long as those that the checkpoint was trained with."""
    trained_len = 0 if dialect == AUTOREGRESSIVE else dialect.default.canvas_len
    return replace(
        config,
        page_size=math.lcm(config.page_size, dialect.page_multiple),
        max_canvas_len=max(config.max_canvas_len, trained_len),
    )


def doubling_context(config: ModelConfig) -> int:
    """Cached tokens with which the attention of a row takes as long as its matrix products, on the compiled CPU
    kernels. There attention needs 30 times as long for an element of a key as a linear layer for a multiplication."""
    per_layer = config.dim * (2 * config.q_dim + 2 * config.kv_dim + 3 * config.ffn_dim)
    return max(per_layer // (30 * config.q_dim), 1)


def _num_pages(model: Transformer, config: EngineConfig, context_len: int) -> int:
    if not model.config.dialect.keeps_kv:
        return config.num_pages or 1
    full_context = _full_context_bytes(model, config, context_len)
    free = free_bytes(model.device, full_context, config)
    # On a GPU the adapters of single requests have memory of their own, which is allocated with the backend.
    free -= config.adapter_bytes if model.device.type == "cuda" else 0
    return plan_pages(config, context_len, model.config.kv_bytes_per_token(kv_dtype(model).itemsize), free)


def _full_context_bytes(model: Transformer, config: EngineConfig, context_len: int) -> int:
    return model.config.kv_bytes_per_token(kv_dtype(model).itemsize) * (context_len + config.max_canvas_len)


def _adapter_bytes(model: Transformer, config: EngineConfig, context_len: int) -> int:
    """`fitting_adapter_bytes` for the free memory of a GPU."""
    if isinstance(model, DiffusionGemma):
        return 0
    full_context = _full_context_bytes(model, config, context_len)
    free = free_bytes(model.device, full_context, config)
    needed = full_context if model.config.dialect.keeps_kv and not (config.num_pages or config.kv_bytes) else 0
    return fitting_adapter_bytes(config.adapter_bytes, free, needed)


def free_bytes(device: torch.device, full_context: int, config: EngineConfig) -> int:
    """Memory that is available for KV pages. On a CPU it is at most 2 GiB, or the KV of two full contexts if that is
    more. The operating system commits this memory only when it is first written."""
    free = own_share(free_memory(device.type), config)
    return free if device.type == "cuda" else min(free, max(2 << 30, 2 * full_context))


def own_share(free: int, config: EngineConfig) -> int:
    """The part of `free` for this model, where several share the memory. Other models can reserve at most half."""
    return int(max(free - config.reserved_bytes, free // 2) * config.memory_share)


def fingerprint(name: str, samples: bytes, numerics: str) -> str:
    """Identifies a numerically identical engine: a hash of the model name, of `weight_samples`, and of `numerics`
    (backend, weight format, matmul mode and approximations)."""
    return "fp_" + hashlib.sha256(f"{name}\0{numerics}".encode() + samples).hexdigest()[:16]


def weight_samples(model: Transformer) -> bytes:
    """Names, shapes and up to 64 values of every tensor."""
    parts = []
    for key, tensor in sorted(model.state_dict().items()):
        if isinstance(tensor, torch.Tensor):
            flat = tensor.detach().flatten()
            sample = flat[:: max(len(flat) // 64, 1)][:64].float().cpu()
            parts.append(key.encode() + str(tuple(tensor.shape)).encode() + sample.numpy().tobytes())
    return b"".join(parts)


def _max_canvas_len(model: Transformer, config: EngineConfig) -> int:
    """A canvas of n tokens has n - 1 mask rows; a canvas adapter has one learned embedding for each. A dialect with a
    mask token has one embedding for all."""
    if model.canvas is None or model.config.dialect != AUTOREGRESSIVE:
        return config.max_canvas_len
    return min(config.max_canvas_len, len(model.canvas.mask_embedding) + 1)
