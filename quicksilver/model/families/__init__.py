"""The registry of model families. A new family is one `Family` record in a module here, and one entry in `_ALL`."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from quicksilver.errors import CheckpointRefused
from quicksilver.model.families.bidirectional import DREAM, LLADA, TINY_A2D
from quicksilver.model.families.block_diffusion import EFFICIENT_DLM, FAST_DLLM, SDAR, STABLE_DIFFCODER
from quicksilver.model.families.causal_diffusion import IDLM, NEMOTRON, WEDLM_7B, WEDLM_8B
from quicksilver.model.families.diffusion_gemma import DIFFUSION_GEMMA
from quicksilver.model.families.family import Family
from quicksilver.model.families.llama import LLAMA
from quicksilver.model.families.qwen2 import QWEN2
from quicksilver.model.families.qwen3 import QWEN3
from quicksilver.model.families.sparse_diffusion import LLADA2, SDAR_MOE

__all__ = ["FAMILIES", "Family", "family_of_gguf", "family_of_hf"]

log = logging.getLogger(__name__)

_ALL = (
    LLAMA, QWEN2, QWEN3, SDAR, FAST_DLLM, TINY_A2D, EFFICIENT_DLM, STABLE_DIFFCODER, NEMOTRON, IDLM, WEDLM_7B,
    WEDLM_8B, LLADA2, SDAR_MOE, DIFFUSION_GEMMA, LLADA, DREAM,
)  # fmt: skip
FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}


def family_of_hf(config: Mapping[str, Any], name: str = "") -> Family:
    """The family of a parsed config.json: by `model_type`, by the classes that `architectures` and `auto_map` name, and
    by the checkpoint's name where two families share both."""
    model_type, classes = config.get("model_type"), _classes(config)
    # Without a class the first family counts: an autoregressive one precedes those that share its model_type.
    fitting = [
        family
        for family in FAMILIES.values()
        if model_type in family.known_model_types and classes <= {family.architecture} and family.has_body(config)
    ]
    by_name = [family for family in fitting if family.name_pattern and re.search(family.name_pattern, name.lower())]
    plain = [family for family in fitting if not family.name_pattern]
    if not by_name and not plain:
        raise CheckpointRefused(
            f"config.json: model_type {model_type!r} with architecture {', '.join(sorted(classes)) or 'none'} is not "
            f"supported; known: {_known()}"
        )
    chosen = (by_name or plain)[0]
    if len(fitting) > 1 and any(family.name_pattern for family in fitting):
        others = ", ".join(family.name for family in fitting if family is not chosen)
        log.info("%s: loaded as %s, by its name. If it is %s, give its folder that name", name, chosen.name, others)
    return chosen


def _classes(config: Mapping[str, Any]) -> set[str]:
    """The model classes that a config names. A causal class of `auto_map` counts even beside another architecture."""
    remote = config.get("auto_map") or {}
    causal = remote.get("AutoModelForCausalLM") if isinstance(remote, Mapping) else None
    named = [*(config.get("architectures") or []), *([str(causal).rsplit(".", 1)[-1]] if causal else [])]
    return {str(name) for name in named}


def _known() -> str:
    return ", ".join(f"{family.name} ({family.architecture})" for family in FAMILIES.values())


def family_of_gguf(fields: Mapping[str, Any]) -> Family:
    """The family of GGUF metadata, by `general.architecture`."""
    name = fields.get("general.architecture")
    families = [family for family in FAMILIES.values() if family.gguf_architecture]
    for family in families:
        if name == family.gguf_architecture:
            return family
    known = ", ".join(family.gguf_architecture for family in families)
    raise CheckpointRefused(f"GGUF metadata: architecture {name!r} is not supported; known: {known}")
