"""Writes an adapter file from a checkpoint: rounded tensors, and metadata that records its provenance.

It also loads base weights with a skill merged, and an exported canvas adapter in the tensor layout of training, so that
measurements include the rounding.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from quicksilver.errors import InvalidRequest
from quicksilver.model.adapters import Adapter, CanvasAdapter, load_adapter, merge_skill, save_adapter
from quicksilver.model.files.checkpoint import load_model
from quicksilver.model.lowrank import LowRank
from quicksilver.model.transformer import Transformer
from quicksilver.training.canvas import MASKS
from quicksilver.training.prepared_data import Facts
from quicksilver.training.recipe import Recipe
from quicksilver.training.skill import RESERVED
from quicksilver.training.toy_task import tiny_model


def load_base(base: Path | None, skill: Path | None) -> Transformer:
    """Load the base in full precision on the CPU, with an optional skill adapter merged."""
    model = tiny_model() if base is None else load_model(base)
    if skill is not None:
        merge_skill(model, load_adapter(skill))
    return model


def canvas_tensors(path: Path) -> dict[str, Tensor]:
    """A canvas adapter in the tensor layout of training."""
    adapter = load_adapter(path)
    if not isinstance(adapter, CanvasAdapter):
        raise InvalidRequest(f"{path.name} is no canvas adapter: it has no mask embeddings")
    return {MASKS: adapter.mask_embedding.detach().float(), **low_rank_tensors(adapter)}


def skill_tensors(path: Path, reserved: Tensor) -> dict[str, Tensor]:
    """A skill adapter in the tensor layout of training. Its reserved tokens must match."""
    adapter = load_adapter(path)
    if adapter.embedding_ids is None or not torch.equal(adapter.embedding_ids, reserved.cpu()):
        raise InvalidRequest(f"{path.name} was taught other reserved tokens than the data has")
    assert adapter.embedding_rows is not None
    return {RESERVED: adapter.embedding_rows, **low_rank_tensors(adapter)}


def low_rank_tensors(adapter: Adapter) -> dict[str, Tensor]:
    """The pairs in the tensor layout of training; `low_rank_layers` is the inverse."""
    tensors = {}
    for index, name, pair in adapter.low_rank():
        tensors[f"{index}.{name}.A"] = pair.A.detach().float()
        tensors[f"{index}.{name}.B"] = pair.B.detach().float()
    return tensors


def export_adapter(checkpoint: Path, target: Path, bits: int, metadata: Mapping[str, str], reserved: Tensor) -> None:
    """Round the averaged (or last) tensors of a checkpoint into an adapter file."""
    tensors = finished_tensors(checkpoint)
    layers = low_rank_layers(tensors)
    adapter: Adapter
    if MASKS in tensors:
        adapter = CanvasAdapter(layers, tensors[MASKS])
    else:
        adapter = Adapter(layers)
        adapter.replace_embeddings(reserved, tensors[RESERVED])
    save_adapter(target, adapter, metadata, bits)


def finished_tensors(checkpoint: Path) -> dict[str, Tensor]:
    with safe_open(checkpoint, framework="pt") as file:
        names = list(file.keys())
        kind = "average/" if any(name.startswith("average/") for name in names) else "parameter/"
        return {name.removeprefix(kind): file.get_tensor(name) for name in names if name.startswith(kind)}


def low_rank_layers(tensors: Mapping[str, Tensor]) -> list[dict[str, nn.Module]]:
    pairs = sorted({tuple(name.split(".")[:2]) for name in tensors if name.count(".") == 2})
    layers: list[dict[str, nn.Module]] = [{} for _ in range(1 + max(int(layer) for layer, _ in pairs))]
    for layer, name in pairs:
        layers[int(layer)][name] = LowRank(tensors[f"{layer}.{name}.A"], tensors[f"{layer}.{name}.B"])
    return layers


def provenance(recipe: Recipe, facts: Facts, base: Path | None, steps: Mapping[str, float]) -> dict[str, str]:
    """Provenance for the header of an adapter file."""
    return {
        "name": recipe.name,
        "description": recipe.description,
        "base_sha256": "" if base is None else sha256_of(base),
        "recipe_sha256": recipe.sha256,
        "overrides": json.dumps([_without_folders(text) for text in recipe.overrides]),
        "data": json.dumps(facts.documents),
        "data_sha256": facts.sha256,
        "roles": json.dumps(facts.reserved),
        "training": json.dumps(dict(steps)),
        "torch": torch.__version__,
    }


def _without_folders(override: str) -> str:
    """Command-line overrides without the paths of the training machine."""
    return re.sub(r'"/[^"]*/([^"/]+)"', r'"\1"', override)


def sha256_of(path: Path) -> str:
    """Hash of one file, or of the safetensors files of a folder in name order."""
    digest = hashlib.sha256()
    for file in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
        with file.open("rb") as raw:
            while block := raw.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def commit() -> str:
    """The git commit of the checkout, or an empty string."""
    try:
        asked = ["git", "rev-parse", "HEAD"]
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
