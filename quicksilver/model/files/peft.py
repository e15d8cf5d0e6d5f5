"""Adapters in PEFT's layout: a folder with `adapter_config.json` and `adapter_model.safetensors`.

Projections that the network fuses are joined on reading: A is stacked, and B becomes block-diagonal. If they have the
same A, as in files of this project, it is kept once. Only plain LoRA is read: any other feature of the format, known
here or not, is refused by its name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from quicksilver.errors import CheckpointRefused
from quicksilver.model.config import ModelConfig
from quicksilver.model.files.headers import FileHeader, read_safetensors_header
from quicksilver.model.files.shards import open_tensors, read_json
from quicksilver.model.lowrank import Adapter, LowRank, linear_shapes

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
MAX_PEFT_RANK = 256
# Settings that do not change what a trained adapter computes. Every other setting must be absent or empty.
_IGNORED = frozenset({
    "auto_mapping", "base_model_name_or_path", "exclude_modules", "inference_mode", "layers_pattern",
    "layers_to_transform", "lora_dropout", "megatron_core", "peft_version", "qalora_group_size", "revision",
    "runtime_config", "target_modules", "task_type",
})  # fmt: skip
# Settings that are read here.
_READ = frozenset({"peft_type", "r", "lora_alpha", "use_rslora", "bias", "init_lora_weights"})
# Initialisations that leave the base weights as they are. With the others the adapter fits a changed base.
_PLAIN_INITS = (True, False, None, "gaussian", "orthogonal", "eva")
_NAME = re.compile(
    r"base_model\.model\.(?:model\.)?layers\.(\d{1,4})\.(?:self_attn|mlp)\.([a-z]+_proj)\.lora_([AB])(?:\.default)?\.weight"
)
# The linears of the network and their projections, in the order of their rows.
PROJECTIONS = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gu": ("gate_proj", "up_proj"),
    "dn": ("down_proj",),
}
_Pairs = dict[tuple[int, str], dict[str, Tensor]]


def load_peft(folder: Path, config: ModelConfig, max_rank: int = MAX_PEFT_RANK) -> Adapter:
    """The adapter for a network of this shape; weights are fp32 on the CPU, with the scale multiplied into B."""
    options = read_json(folder / CONFIG_FILE)
    rank, scale = _read_options(options, max_rank)
    path = folder / WEIGHTS_FILE
    header = read_safetensors_header(path)
    _check_header(header, config, rank)
    pairs = _read_pairs(path, header)
    layers: list[dict[str, nn.Module]] = []
    for index in range(config.num_layers):
        joined = {name: _join(pairs, index, name, config, scale) for name in PROJECTIONS}
        layers.append({name: pair for name, pair in joined.items() if pair is not None})
    adapter = Adapter(layers)
    base = options.get("base_model_name_or_path")
    adapter.metadata = {"base_model": base} if isinstance(base, str) else {}
    return adapter.requires_grad_(False)


def _read_options(options: Mapping[str, Any], max_rank: int) -> tuple[int, float]:
    """Rank and scale. Raises CheckpointRefused with the name of the first setting that is not plain LoRA."""
    if options.get("peft_type") != "LORA":
        raise CheckpointRefused(f"{CONFIG_FILE}: peft_type {str(options.get('peft_type'))[:40]!r} is not LORA")
    unknown = sorted(name for name, value in options.items() if value and name not in _IGNORED | _READ)
    if unknown:
        raise CheckpointRefused(f"{CONFIG_FILE}: {unknown[0][:80]} is not supported, only plain LoRA is")
    if options.get("bias", "none") != "none":
        raise CheckpointRefused(f"{CONFIG_FILE}: bias is not supported, only plain LoRA is")
    if options.get("init_lora_weights", True) not in _PLAIN_INITS:
        raise CheckpointRefused(
            f"{CONFIG_FILE}: init_lora_weights {str(options['init_lora_weights'])[:40]!r} changes the base weights; "
            "save the adapter as plain LoRA"
        )
    rank, alpha = options.get("r"), options.get("lora_alpha", 8)
    if type(rank) is not int or not 0 < rank <= max_rank:
        raise CheckpointRefused(f"{CONFIG_FILE}: r is {str(rank)[:40]}, from 1 to {max_rank} is supported")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise CheckpointRefused(f"{CONFIG_FILE}: lora_alpha is not a number")
    return rank, alpha / (math.sqrt(rank) if options.get("use_rslora") else rank)


def _check_header(header: FileHeader, config: ModelConfig, rank: int) -> None:
    """Names and shapes, before any value is read."""
    shapes = projection_shapes(config)
    for name, entry in header.entries.items():
        found = _NAME.fullmatch(name)
        if found is None or found[2] not in shapes:
            raise CheckpointRefused(f"{WEIGHTS_FILE}: {name} is not LoRA on a projection of this network")
        if int(found[1]) >= config.num_layers:
            raise CheckpointRefused(f"{WEIGHTS_FILE}: {name}: the model has {config.num_layers} layers")
        out_dim, in_dim = shapes[found[2]]
        wanted = (rank, in_dim) if found[3] == "A" else (out_dim, rank)
        if entry.shape != wanted:
            raise CheckpointRefused(f"{WEIGHTS_FILE}: {name} is {entry.shape}, rank {rank} on this model is {wanted}")
        if entry.dtype not in ("F32", "F16", "BF16"):
            raise CheckpointRefused(f"{WEIGHTS_FILE}: {name} is {entry.dtype}, not F32, F16 or BF16")
    if not header.entries:
        raise CheckpointRefused(f"{WEIGHTS_FILE} has no tensors")


def projection_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(out, in) of every projection."""
    fused = linear_shapes(config)
    outs = {"q_proj": config.q_dim, "k_proj": config.kv_dim, "v_proj": config.kv_dim}
    outs |= {"gate_proj": config.ffn_dim, "up_proj": config.ffn_dim}
    return {
        projection: (outs.get(projection, fused[name][0]), fused[name][1])
        for name, projections in PROJECTIONS.items()
        for projection in projections
    }


def _read_pairs(path: Path, header: FileHeader) -> _Pairs:
    pairs: _Pairs = {}
    with open_tensors(path) as file:
        for name in header.entries:
            found = _NAME.fullmatch(name)
            assert found is not None, "names have been checked"
            sides = pairs.setdefault((int(found[1]), found[2]), {})
            if sides.setdefault(found[3], values := file.get_tensor(name).float()) is not values:
                raise CheckpointRefused(f"{path.name}: {name} is there twice")
    for (index, projection), sides in pairs.items():
        if set(sides) != {"A", "B"}:
            raise CheckpointRefused(f"{path.name}: layer {index} {projection}: lora_A or lora_B is missing")
    return pairs


def _join(pairs: _Pairs, index: int, name: str, config: ModelConfig, scale: float) -> LowRank | None:
    """The pairs of the projections of one linear as one; None if the adapter has none of them."""
    shapes = projection_shapes(config)
    a_parts, columns, row = [], [], 0
    for projection in PROJECTIONS[name]:
        sides = pairs.get((index, projection))
        if sides is not None:
            a_parts.append(sides["A"])
            columns.append((row, sides["B"] * scale))
        row += shapes[projection][0]
    if not a_parts:
        return None
    is_shared = all(torch.equal(part, a_parts[0]) for part in a_parts)
    a = a_parts[0] if is_shared else torch.cat(a_parts)
    b, column = torch.zeros(row, len(a)), 0
    for first, part in columns:
        b[first : first + part.shape[0], column : column + part.shape[1]] = part
        column += 0 if is_shared else part.shape[1]
    return LowRank(a, b)


def to_peft(adapter: Adapter, config: ModelConfig, base: str) -> dict[str, bytes]:
    """The files of an adapter in PEFT's layout, in its number format. All pairs must have one rank. Replaced embeddings
    cannot be expressed and are refused."""
    if adapter.embedding_rows is not None and len(adapter.embedding_rows):
        raise CheckpointRefused("the adapter replaces token embeddings, which PEFT's layout does not have")
    ranks = {pair.A.shape[0] for _, _, pair in adapter.low_rank()}
    if len(ranks) != 1:
        raise CheckpointRefused("the matrices of the adapter have several ranks")
    shapes, tensors, used = projection_shapes(config), dict[str, Tensor](), set[str]()
    for index, name, pair in adapter.low_rank():
        a, b, row = pair.A.detach().cpu().contiguous(), pair.B.detach().cpu().contiguous(), 0
        group = "self_attn" if name in ("qkv", "o") else "mlp"
        for projection in PROJECTIONS[name]:
            prefix = f"base_model.model.model.layers.{index}.{group}.{projection}"
            tensors[f"{prefix}.lora_A.weight"] = a.clone()
            end = row + shapes[projection][0]
            tensors[f"{prefix}.lora_B.weight"] = b[row:end].clone()
            row = end
            used.add(projection)
    (rank,) = ranks
    options = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": rank, "lora_alpha": rank,
        "lora_dropout": 0.0, "bias": "none", "use_rslora": False, "target_modules": sorted(used),
        "inference_mode": True,
    }  # fmt: skip
    return {CONFIG_FILE: json.dumps(options, indent=1).encode(), WEIGHTS_FILE: save(tensors, {"format": "pt"})}
