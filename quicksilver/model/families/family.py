"""Differences between model families, as data. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quicksilver.model.files.tensor_names import GGUF_NAMES, HF_NAMES, NameTable


def _same(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config


@dataclass(frozen=True, slots=True)
class Family:
    """One family of checkpoints that `Transformer` can compute.

    The network reads the layer options through `ModelConfig`; the file readers use the names and the layout.
    """

    name: str  # `model_type` in config.json
    architecture: str  # entry of `architectures` in config.json
    gguf_architecture: str  # `general.architecture` in GGUF metadata

    # Layer options.
    qkv_bias: bool = False  # q, k and v projections have a bias
    qk_norm: bool = False  # RMSNorm over each query and key head, before RoPE

    # Files.
    standard_config: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _same  # config.json -> Llama's key names
    hf_names: NameTable = field(default_factory=lambda: HF_NAMES)  # tensors in safetensors files
    gguf_names: NameTable = field(default_factory=lambda: GGUF_NAMES)  # tensors in GGUF files
    gguf_interleaves_rope: bool = False  # GGUF stores q and k rows for interleaved instead of rotate-half rotation
