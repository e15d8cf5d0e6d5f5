"""Find and open the files of a safetensors directory. Paths outside the directory are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from quicksilver.errors import CheckpointRefused
from quicksilver.model.files.headers import check_name

# Bound on config.json and on index files.
_MAX_JSON_BYTES = 16 << 20


def read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointRefused(f"{path.name} is missing")
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise CheckpointRefused(f"{path.name} is too large")
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointRefused(f"{path.name} is not valid JSON") from error
    if not isinstance(found, dict):
        raise CheckpointRefused(f"{path.name} is not a JSON object")
    return found


def checkpoint_name(folder: Path) -> str:
    """The name of the checkpoint in a folder: of the repository if it is a snapshot in Hugging Face's cache."""
    folder = folder.absolute()
    return folder.parents[1].name.split("--")[-1] if folder.parent.name == "snapshots" else folder.name


def shard_paths(folder: Path) -> list[Path]:
    """The weight files of a directory: those that its index names, else every .safetensors file."""
    index = folder / "model.safetensors.index.json"
    paths = _indexed(folder, index) if index.is_file() else sorted(folder.glob("*.safetensors"))
    for path in paths:
        if path.parent != folder or path.suffix != ".safetensors" or not path.is_file():
            raise CheckpointRefused(f"shard {path.name} is missing or not a safetensors file of this directory")
    if not paths:
        has_pickles = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        reason = "; pickled weights are not supported, convert them to safetensors" if has_pickles else ""
        raise CheckpointRefused(f"{folder.name} has no .safetensors{reason}")
    return paths


def _indexed(folder: Path, index: Path) -> list[Path]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise CheckpointRefused(f"{index.name}: weight_map is not an object of file names")
    for name in set(names.values()):
        check_name(name, index.name)
    return [folder / name for name in sorted(set(names.values()))]


def open_tensors(path: Path) -> Any:
    """Map a safetensors file whose header has been checked."""
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise CheckpointRefused(f"{path.name}: {error}") from error
