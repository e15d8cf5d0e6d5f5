"""Tensor names in checkpoints: the name of each `Transformer` parameter -> the tensors whose rows are stacked into it.

A fused parameter lists its parts in row order. `{i}` is the layer index, `{e}` the index of an expert. These tables are
the defaults of `families.Family`; a family with other names has its own table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

NameTable = Mapping[str, tuple[str, ...]]

_HF_LAYER = "model.layers.{i}"

HF_NAMES: NameTable = {
    "tokens.weight": ("model.embed_tokens.weight",),
    "norm.weight": ("model.norm.weight",),
    "head.weight": ("lm_head.weight",),
    "layers.{i}.attn_norm.weight": (f"{_HF_LAYER}.input_layernorm.weight",),
    "layers.{i}.ffn_norm.weight": (f"{_HF_LAYER}.post_attention_layernorm.weight",),
    "layers.{i}.q_norm.weight": (f"{_HF_LAYER}.self_attn.q_norm.weight",),
    "layers.{i}.k_norm.weight": (f"{_HF_LAYER}.self_attn.k_norm.weight",),
    "layers.{i}.qkv.weight": tuple(f"{_HF_LAYER}.self_attn.{part}_proj.weight" for part in "qkv"),
    "layers.{i}.qkv.bias": tuple(f"{_HF_LAYER}.self_attn.{part}_proj.bias" for part in "qkv"),
    "layers.{i}.o.weight": (f"{_HF_LAYER}.self_attn.o_proj.weight",),
    "layers.{i}.gate_up.weight": (f"{_HF_LAYER}.mlp.gate_proj.weight", f"{_HF_LAYER}.mlp.up_proj.weight"),
    "layers.{i}.down.weight": (f"{_HF_LAYER}.mlp.down_proj.weight",),
}

GGUF_NAMES: NameTable = {
    "tokens.weight": ("token_embd.weight",),
    "norm.weight": ("output_norm.weight",),
    "head.weight": ("output.weight",),
    "layers.{i}.attn_norm.weight": ("blk.{i}.attn_norm.weight",),
    "layers.{i}.ffn_norm.weight": ("blk.{i}.ffn_norm.weight",),
    "layers.{i}.q_norm.weight": ("blk.{i}.attn_q_norm.weight",),
    "layers.{i}.k_norm.weight": ("blk.{i}.attn_k_norm.weight",),
    "layers.{i}.qkv.weight": tuple(f"blk.{{i}}.attn_{part}.weight" for part in "qkv"),
    "layers.{i}.qkv.bias": tuple(f"blk.{{i}}.attn_{part}.bias" for part in "qkv"),
    "layers.{i}.o.weight": ("blk.{i}.attn_output.weight",),
    "layers.{i}.gate_up.weight": ("blk.{i}.ffn_gate.weight", "blk.{i}.ffn_up.weight"),
    "layers.{i}.down.weight": ("blk.{i}.ffn_down.weight",),
}


def part_names(table: NameTable, target: str, num_experts: int = 0) -> list[str]:
    """Names of the tensors whose rows, stacked, are the parameter `target`."""
    layer = re.match(r"layers\.(\d+)\.", target)
    if layer is None:
        return list(table[target])
    pattern = "layers.{i}." + target[layer.end() :]
    parts = [part.replace("{i}", layer.group(1)) for part in table[pattern]]
    if not any("{e}" in part for part in parts):
        return parts
    return [part.replace("{e}", str(expert)) for expert in range(num_experts) for part in parts]
