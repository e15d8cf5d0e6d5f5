"""Differences between model families, as data. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quicksilver.dialect import AUTOREGRESSIVE, Dialect
from quicksilver.model.experts import MoeConfig
from quicksilver.model.files.tensor_names import GGUF_NAMES, HF_NAMES, NameTable
from quicksilver.model.gemma_config import GemmaConfig


def _same(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config


def _any_body(config: Mapping[str, Any]) -> bool:
    return True


def _dense(config: Mapping[str, Any]) -> None:
    return None


def _autoregressive(config: Mapping[str, Any], name: str) -> Dialect:
    return AUTOREGRESSIVE


@dataclass(frozen=True, slots=True)
class Family:
    """One family of checkpoints that `Transformer` can compute.

    The network reads the layer options through `ModelConfig`; the file readers use the names and the layout.
    """

    name: str
    architecture: str  # entry of `architectures` in config.json
    gguf_architecture: str = ""  # `general.architecture` in GGUF metadata; empty if there is none
    model_types: tuple[str, ...] = ()  # `model_type` in config.json; empty: the name
    dialect: Callable[[Mapping[str, Any], str], Dialect] = _autoregressive  # of a config and the checkpoint's name

    # Layer options.
    qkv_bias: bool = False  # q, k and v projections have a bias
    qk_norm: bool = False  # RMSNorm over each query and key head, before RoPE

    moe: Callable[[Mapping[str, Any]], MoeConfig | None] = _dense  # experts of a config
    gemma: Callable[[Mapping[str, Any]], GemmaConfig | None] = _dense  # options of DiffusionGemma's layers

    # Files.
    standard_config: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _same  # config.json -> Llama's key names
    hf_names: NameTable = field(default_factory=lambda: HF_NAMES)  # tensors in safetensors files
    # A second prefix under which tensors may be stored, and prefixes of tensors that are not used.
    hf_alias: tuple[str, str] | None = None
    hf_unused: tuple[str, ...] = ()
    gguf_names: NameTable = field(default_factory=lambda: GGUF_NAMES)  # tensors in GGUF files
    gguf_interleaves_rope: bool = False  # GGUF stores q and k rows for interleaved instead of rotate-half rotation
    # Whether a config belongs to this family, where another one has the same class.
    has_body: Callable[[Mapping[str, Any]], bool] = _any_body
    # A regular expression for names of checkpoints, where configs of another family look the same.
    name_pattern: str = ""

    @property
    def known_model_types(self) -> tuple[str, ...]:
        return self.model_types or (self.name,)
