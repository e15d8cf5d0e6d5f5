"""Resolve a model name or a path to the files to load."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from quicksilver.errors import ModelNotFound
from quicksilver.hub.catalogue import BaseFile, adapter_path, load_catalogue


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of one model."""

    name: str
    weights: Path  # a GGUF file, or a directory of safetensors
    skill: Path | None = None
    canvas: Path | None = None


def default_home() -> Path:
    """The folder of pulled models and caches: $QUICKSILVER_HOME, or ~/.cache/quicksilver."""
    return Path(os.environ.get("QUICKSILVER_HOME") or Path.home() / ".cache" / "quicksilver")


def base_path(base: BaseFile, home: Path) -> Path:
    return home / "models" / base.name / base.file


def original_path(base: BaseFile, home: Path) -> Path:
    """The link to a user's own copy of the base, which `pull.adopt` creates."""
    return home / "models" / base.name / "original"


def resolve(name_or_path: str, home: Path | None = None) -> ModelFiles:
    """For a path, the checkpoint at this path. For a catalogue name, the downloaded base and the adapters of the model.

    Raises ModelNotFound, with the command that downloads a model that is not on this machine.
    """
    path = Path(name_or_path)
    if path.is_dir() or path.suffix == ".gguf":
        return _at_path(path)
    catalogue = load_catalogue()
    model = catalogue.model(name_or_path)
    base, home = catalogue.bases[model.base], home or default_home()
    original = original_path(base, home)
    weights = original if original.is_dir() else base_path(base, home)
    if not weights.exists():
        raise ModelNotFound(f"{model.name} is not on this machine; run: quicksilver pull {model.name}")
    skill = adapter_path(model.skill) if model.skill else None
    canvas = adapter_path(model.canvas) if model.canvas else None
    return ModelFiles(model.name, weights, skill, canvas)


def _at_path(path: Path) -> ModelFiles:
    """A user's checkpoint, with the adapters `adapters/{skill,canvas}.safetensors` next to it, if they exist."""
    if not path.exists():
        raise ModelNotFound(f"there is no checkpoint at {path}")
    folder = path if path.is_dir() else path.parent
    skill, canvas = folder / "adapters" / "skill.safetensors", folder / "adapters" / "canvas.safetensors"
    return ModelFiles(path.stem, path, skill if skill.is_file() else None, canvas if canvas.is_file() else None)
