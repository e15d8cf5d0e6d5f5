"""Builds an Engine from loaded weights: memory plan, KV cache, backend and EngineInfo."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import torch

from quicksilver.backends.choose import make_backend, memory_needs
from quicksilver.core import EngineInfo
from quicksilver.engine.config import EngineConfig, plan_pages
from quicksilver.engine.engine import ConstraintFactory, Engine
from quicksilver.model.attention import PagedCache
from quicksilver.model.transformer import Transformer


def build_engine(
    model: Transformer, name: str, config: EngineConfig, constraints: ConstraintFactory | None = None
) -> Engine:
    """Allocates the KV cache on the device of the weights."""
    device, dtype = model.device, model.dtype
    context_len = config.context_len or model.config.context_len
    num_pages = _num_pages(model, config, context_len)
    backend_config = config.for_backend(context_len, model.weight_format or "bfloat16")
    needs = memory_needs(backend_config, device)
    cache = PagedCache.allocate(model.config, num_pages, config.page_size, device, dtype, needs.scratch_slots)
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
        weight_bytes=model.weight_bytes,
        fingerprint=fingerprint(name, model, numerics),
    )
    config = replace(config, spare_pages=config.spare_pages or needs.spare_pages)
    return Engine(backend, info, config, constraints)


def _num_pages(model: Transformer, config: EngineConfig, context_len: int) -> int:
    bytes_per_token = model.config.kv_bytes_per_token(model.dtype.itemsize)
    full_context = bytes_per_token * (context_len + config.max_canvas_len)
    return plan_pages(config, context_len, bytes_per_token, free_bytes(model.device, full_context))


def free_bytes(device: torch.device, full_context: int) -> int:
    """Memory that is available for KV pages. On a CPU it is at most 2 GiB, or the KV of two full contexts if that is
    more. The operating system commits this memory only when it is first written."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    with open("/proc/meminfo") as meminfo:
        facts = dict(line.split(":") for line in meminfo)
    return min(int(facts["MemAvailable"].split()[0]) * 1024, max(2 << 30, 2 * full_context))


def fingerprint(name: str, model: Transformer, numerics: str) -> str:
    """Identifies a numerically identical engine: a hash of the model name, of sampled values of every tensor, and of
    `numerics` (backend, weight format and matmul mode)."""
    digest = hashlib.sha256(f"{name}\0{numerics}".encode())
    for key, tensor in sorted(model.state_dict().items()):
        if isinstance(tensor, torch.Tensor):
            flat = tensor.detach().flatten()
            sample = flat[:: max(len(flat) // 64, 1)][:64].float().cpu()
            digest.update(key.encode() + str(tuple(tensor.shape)).encode() + sample.numpy().tobytes())
    return "fp_" + digest.hexdigest()[:16]


def _max_canvas_len(model: Transformer, config: EngineConfig) -> int:
    """A canvas of n tokens has n - 1 mask rows; a canvas adapter has one learned embedding for each."""
    if model.canvas is None:
        return config.max_canvas_len
    return min(config.max_canvas_len, len(model.canvas.mask_embedding) + 1)
