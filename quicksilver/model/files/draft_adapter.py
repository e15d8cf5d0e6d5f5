"""Reads a PEFT adapter on the output projections, which Nemotron-Labs-Diffusion uses while it drafts."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor, nn

from quicksilver.errors import CheckpointRefused
from quicksilver.model.config import ModelConfig
from quicksilver.model.files.headers import read_safetensors_header
from quicksilver.model.files.shards import open_tensors, read_json
from quicksilver.model.lowrank import CanvasAdapter, LowRank

FOLDER = "linear_spec_lora"
_NAME = re.compile(r"base_model\.model\.(?:encoder|model)\.layers\.(\d+)\.self_attn\.o_proj\.lora_([AB])\.weight")


def load_draft_adapter(checkpoint: Path, config: ModelConfig) -> CanvasAdapter | None:
    """The adapter in the folder `linear_spec_lora` of a checkpoint; None if there is none."""
    folder = checkpoint / FOLDER
    path = folder / "adapter_model.safetensors"
    if not path.is_file():
        return None
    options = read_json(folder / "adapter_config.json")
    if options.get("use_dora") or options.get("bias", "none") != "none" or not options.get("r"):
        raise CheckpointRefused(f"{FOLDER}: only plain LoRA without biases is supported")
    root = float(options["r"]) ** (0.5 if options.get("use_rslora") else 1.0)
    scale = float(options.get("lora_alpha") or options["r"]) / root
    pairs = _pairs(path, config.num_layers)
    layers: list[dict[str, nn.Module]] = [{"o": LowRank(a.float(), b.float() * scale)} for a, b in pairs]
    return CanvasAdapter(layers, torch.empty(0, config.dim))


def _pairs(path: Path, num_layers: int) -> list[tuple[Tensor, Tensor]]:
    names = {name: _NAME.fullmatch(name) for name in read_safetensors_header(path).entries}
    unknown = sorted(name for name, match in names.items() if match is None)
    if unknown:
        raise CheckpointRefused(f"{FOLDER}: {unknown[0]} is not a pair on an output projection")
    with open_tensors(path) as file:
        found = {(int(match[1]), match[2]): file.get_tensor(name) for name, match in names.items() if match}
    if set(found) != {(layer, side) for layer in range(num_layers) for side in "AB"}:
        raise CheckpointRefused(f"{FOLDER}: the adapter does not have one pair for each of {num_layers} layers")
    return [(found[layer, "A"], found[layer, "B"]) for layer in range(num_layers)]
