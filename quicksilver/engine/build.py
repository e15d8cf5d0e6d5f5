"""From loaded weights to a running Engine: the memory plan, the cache, and the facts the engine tells about itself."""

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
    """Allocates the KV cache beside the weights, on their device."""
    device, dtype = model.device, model.dtype
    bytes_per_token = model.config.kv_bytes_per_token(dtype.itemsize)
    context_len = config.context_len or model.config.context_len
    full_context = bytes_per_token * (context_len + config.max_canvas_len)
    num_pages = plan_pages(config, bytes_per_token, free_bytes(device, full_context))
    info = EngineInfo(
        model=name,
        family=model.config.family,
        vocab_size=model.config.vocab_size,
        context_len=context_len,
        max_canvas_len=_max_canvas_len(model, config),
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        num_pages=num_pages,
        page_size=config.page_size,
        weight_bytes=model.weight_bytes,
        fingerprint=fingerprint(name, model),
    )
    backend_config = config.for_backend(context_len, model.weight_format or "bfloat16")
    needs = memory_needs(backend_config, device)
    cache = PagedCache.allocate(model.config, num_pages, config.page_size, device, dtype, needs.scratch_slots)
    backend = make_backend(model.eval(), cache, backend_config)
    config = replace(config, spare_pages=config.spare_pages or needs.spare_pages)
    return Engine(backend, info, config, constraints)


def free_bytes(device: torch.device, full_context: int) -> int:
    """Memory that KV pages may use: free bytes of the GPU, or of what a CPU machine has available at most 2 GiB or, if
    that is more, twice what one full context takes. The system hands out pages as they are written to."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    with open("/proc/meminfo") as meminfo:
        facts = dict(line.split(":") for line in meminfo)
    return min(int(facts["MemAvailable"].split()[0]) * 1024, max(2 << 30, 2 * full_context))


def fingerprint(name: str, model: Transformer) -> str:
    """A short name of exactly these numbers: samples every tensor, so it is quick and still sees any swap."""
    digest = hashlib.sha256(name.encode())
    for key, tensor in sorted(model.state_dict().items()):
        if isinstance(tensor, torch.Tensor):
            flat = tensor.detach().flatten()
            sample = flat[:: max(len(flat) // 64, 1)][:64].float().cpu()
            digest.update(key.encode() + str(tuple(tensor.shape)).encode() + sample.numpy().tobytes())
    return "fp_" + digest.hexdigest()[:16]


def _max_canvas_len(model: Transformer, config: EngineConfig) -> int:
    """A canvas of n tokens has n - 1 mask rows, each with a learned embedding where there is an adapter."""
    if model.canvas is None:
        return config.max_canvas_len
    return min(config.max_canvas_len, len(model.canvas.mask_embedding) + 1)
