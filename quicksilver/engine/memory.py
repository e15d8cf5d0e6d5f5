"""Refuses a checkpoint that does not fit the memory of its device, before its weights are read."""

from __future__ import annotations

import torch

from quicksilver.engine.config import LARGEST_SHARE, EngineConfig
from quicksilver.errors import InvalidRequest
from quicksilver.model.config import ModelConfig
from quicksilver.model.files.inspect import loading_bytes
from quicksilver.model.formats.weight_formats import formats_for, kv_number_bytes


def free_memory(device: str) -> int:
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    with open("/proc/meminfo") as meminfo:
        facts = dict(line.split(":") for line in meminfo)
    return int(facts["MemAvailable"].split()[0]) * 1024


def check_memory(config: ModelConfig, weights: str, device: str, engine: EngineConfig, free: int) -> None:
    """Raises InvalidRequest with the formats and the context length that would fit."""
    context_len = 0 if engine.num_pages or engine.kv_bytes else engine.context_len or config.context_len
    needed, kv = size_of(config, weights), kv_per_token(config, weights) * context_len
    usable = int(free * LARGEST_SHARE)
    if needed + kv <= usable:
        return
    names = formats_for(config, device)
    smaller = [name for name in names if size_of(config, name) + kv_per_token(config, name) * context_len <= usable]
    advice = [f"--weights {name} ({size_of(config, name) / 1e9:.1f} GB)" for name in smaller]
    if kv and needed < usable and (fitting := (usable - needed) // kv_per_token(config, weights) // 1024 * 1024):
        advice.append(f"--context-len {fitting}")
    raise InvalidRequest(
        f"{config.family} needs {needed / 1e9:.1f} GB for weights in {weights} and {kv / 1e9:.1f} GB for a context of "
        f"{context_len} tokens, and {usable / 1e9:.1f} GB can be used. "
        + (f"These fit: {', '.join(advice)}" if advice else "No number format of this device fits"),
        param="weights",
    )


def kv_per_token(config: ModelConfig, weights: str) -> int:
    return config.kv_bytes_per_token(kv_number_bytes(weights))


def size_of(config: ModelConfig, weights: str) -> int:
    """The most memory that the weights take while they are loaded."""
    return loading_bytes(config)[weights]
