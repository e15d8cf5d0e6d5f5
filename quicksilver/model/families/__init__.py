"""The registry of model families. A new family is one module here with a `Family` record, and one line in `_ALL`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quicksilver.errors import CheckpointRefused
from quicksilver.model.families.family import Family
from quicksilver.model.families.llama import LLAMA
from quicksilver.model.families.qwen2 import QWEN2
from quicksilver.model.families.qwen3 import QWEN3

__all__ = ["FAMILIES", "Family", "family_of_gguf", "family_of_hf"]

_ALL = (LLAMA, QWEN2, QWEN3)
FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}


def family_of_hf(config: Mapping[str, Any]) -> Family:
    """The family of a parsed config.json, by `model_type` and, where it is given, `architectures`."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise CheckpointRefused(
            f"config.json: model_type {model_type!r} is not supported; known: {', '.join(FAMILIES)}"
        )
    family, architectures = FAMILIES[model_type], config.get("architectures")
    if architectures and family.architecture not in architectures:
        known = ", ".join(known.architecture for known in FAMILIES.values())
        raise CheckpointRefused(f"config.json: architectures {architectures!r} are not supported; known: {known}")
    return family


def family_of_gguf(fields: Mapping[str, Any]) -> Family:
    """The family of GGUF metadata, by `general.architecture`."""
    name = fields.get("general.architecture")
    for family in FAMILIES.values():
        if name == family.gguf_architecture:
            return family
    known = ", ".join(family.gguf_architecture for family in FAMILIES.values())
    raise CheckpointRefused(f"GGUF metadata: architecture {name!r} is not supported; known: {known}")
