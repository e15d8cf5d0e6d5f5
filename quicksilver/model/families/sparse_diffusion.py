"""Block diffusion with mixture-of-experts layers: LLaDA2.0 and 2.1, and SDAR-30B-A3B."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quicksilver.core import DecoderName, DecoderParams
from quicksilver.dialect import Dialect
from quicksilver.errors import CheckpointRefused
from quicksilver.model.experts import MoeConfig
from quicksilver.model.families.block_diffusion import SDAR, block_dialect, size
from quicksilver.model.families.family import Family
from quicksilver.model.files.tensor_names import HF_NAMES, NameTable

log = logging.getLogger(__name__)

_LAYER = "model.layers.{i}"
_EXPERTS: NameTable = {
    "layers.{i}.moe.router": (f"{_LAYER}.mlp.gate.weight",),
    "layers.{i}.moe.gate_up": (
        f"{_LAYER}.mlp.experts.{{e}}.gate_proj.weight",
        f"{_LAYER}.mlp.experts.{{e}}.up_proj.weight",
    ),
    "layers.{i}.moe.down": (f"{_LAYER}.mlp.experts.{{e}}.down_proj.weight",),
}

LLADA2_NAMES: NameTable = {
    **HF_NAMES,
    **_EXPERTS,
    "tokens.weight": ("model.word_embeddings.weight",),
    "layers.{i}.qkv.weight": (f"{_LAYER}.attention.query_key_value.weight",),
    "layers.{i}.q_norm.weight": (f"{_LAYER}.attention.query_layernorm.weight",),
    "layers.{i}.k_norm.weight": (f"{_LAYER}.attention.key_layernorm.weight",),
    "layers.{i}.o.weight": (f"{_LAYER}.attention.dense.weight",),
    "layers.{i}.moe.bias": (f"{_LAYER}.mlp.gate.expert_bias",),
    "layers.{i}.moe.shared_gate_up.weight": (
        f"{_LAYER}.mlp.shared_experts.gate_proj.weight",
        f"{_LAYER}.mlp.shared_experts.up_proj.weight",
    ),
    "layers.{i}.moe.shared_down.weight": (f"{_LAYER}.mlp.shared_experts.down_proj.weight",),
}


def _llada2(config: Mapping[str, Any], name: str) -> Dialect:
    """2.1 was trained to revise its tokens, 2.0 was not; their configs are the same. A checkpoint whose name says
    neither decodes by default with `confidence`, which both were trained for. `DecoderParams` describes the fields."""
    dialect = block_dialect(size(config, "block_size", 32), size(config, "mask_token_id", 156895), (156892,), 0.95)
    version = _version(name) or _version(str(config.get("_name_or_path") or ""))
    if version == "2.0":
        return replace(dialect, decoders=(DecoderName.CONFIDENCE,))
    edit = DecoderParams(DecoderName.EDIT, threshold=0.7, edit_threshold=0.5, stutter_penalty=0.0)
    if version == "2.1":
        return replace(dialect, default=edit, others=(dialect.default,))
    log.info("%s: neither LLaDA2.0 nor 2.1 by its name; edit is for 2.1 and must be requested", name or "llada2")
    return replace(dialect, others=(edit,))


def _version(name: str) -> str:
    found = re.search(r"(?<![\d.])2\.[01](?!\d)", name.rstrip("/").rsplit("/", 1)[-1])
    return found[0] if found else ""


def _llada2_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    if config.get("image_token_offset") or config.get("expert_capacity"):
        raise CheckpointRefused("config.json: LLaDA2.0-Uni and LLaDA2.2 are not supported")
    if config.get("use_qk_norm", True) is False or config.get("use_bias") or config.get("use_qkv_bias"):
        raise CheckpointRefused("config.json: LLaDA2 without query and key norms, or with biases, is not supported")
    # A sliding window is in the file and not used.
    return {**config, "use_sliding_window": False, "partial_rotary_factor": config.get("partial_rotary_factor", 0.5)}


def _llada2_experts(config: Mapping[str, Any]) -> MoeConfig:
    if config.get("score_function", "sigmoid") != "sigmoid":
        raise CheckpointRefused(f"config.json: router {config['score_function']!r} is not supported")
    ffn_dim = int(config["moe_intermediate_size"])
    return MoeConfig(
        num_experts=int(config["num_experts"]),
        top_k=int(config["num_experts_per_tok"]),
        ffn_dim=ffn_dim,
        router="sigmoid",
        has_bias=True,
        num_groups=size(config, "n_group", 1),
        top_groups=size(config, "topk_group", 1),
        is_normalised=bool(config.get("norm_topk_prob", True)),
        scale=float(config.get("routed_scaling_factor") or 1.0),
        shared_ffn_dim=ffn_dim * size(config, "num_shared_experts", 0),
        num_dense=size(config, "first_k_dense_replace", 0),
    )


def _sdar_experts(config: Mapping[str, Any]) -> MoeConfig:
    if config.get("mlp_only_layers") or size(config, "decoder_sparse_step", 1) != 1:
        raise CheckpointRefused("config.json: SDAR with some dense layers is not supported")
    return MoeConfig(
        num_experts=int(config["num_experts"]),
        top_k=int(config["num_experts_per_tok"]),
        ffn_dim=int(config["moe_intermediate_size"]),
        is_normalised=bool(config.get("norm_topk_prob", True)),
    )


LLADA2 = Family(
    name="llada2",
    architecture="LLaDA2MoeModelLM",
    model_types=("llada2_moe",),
    dialect=_llada2,
    moe=_llada2_experts,
    qk_norm=True,
    standard_config=_llada2_config,
    hf_names=LLADA2_NAMES,
)
SDAR_MOE = Family(
    name="sdar-moe",
    architecture="SDARMoeForCausalLM",
    model_types=("sdar_moe",),
    dialect=SDAR.dialect,
    moe=_sdar_experts,
    qk_norm=True,
    hf_names={**HF_NAMES, **_EXPERTS},
)
