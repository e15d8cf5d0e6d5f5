"""A name or a path -> the files to load. Says which command to run when they are not there yet."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from quicksilver.errors import ModelNotFound
from quicksilver.hub.catalogue import Base, adapter_path, load_catalogue


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The files of one model."""

    name: str
    weights: Path
    """A GGUF file, or a directory of safetensors."""
    skill: Path | None = None
    canvas: Path | None = None


def default_home() -> Path:
    """Where pulled models lie: $QUICKSILVER_HOME, or ~/.cache/quicksilver."""
    return Path(os.environ.get("QUICKSILVER_HOME") or Path.home() / ".cache" / "quicksilver")


def base_path(base: Base, home: Path) -> Path:
    return home / "models" / base.name / base.file


def original_path(base: Base, home: Path) -> Path:
    """A link to the user's own copy of the original, where one was taken instead of the registry's file."""
    return home / "models" / base.name / "original"


def resolve(name_or_path: str, home: Path | None = None) -> Checkpoint:
    """Of a path: the checkpoint there. Of a catalogue name: its pulled base and shipped adapters."""
    path = Path(name_or_path)
    if path.is_dir() or path.suffix == ".gguf":
        return _at_path(path)
    catalogue = load_catalogue()
    model = catalogue.model(name_or_path)
    base, home = catalogue.bases[model.base], home or default_home()
    original = original_path(base, home)
    weights = original if original.is_dir() else base_path(base, home)
    if not weights.exists():
        raise ModelNotFound(f"{model.name} is not on this machine yet; run: quicksilver pull {model.name}")
    skill = adapter_path(model.skill) if model.skill else None
    canvas = adapter_path(model.canvas) if model.canvas else None
    return Checkpoint(model.name, weights, skill, canvas)


def _at_path(path: Path) -> Checkpoint:
    """A user's own checkpoint; adapters named skill.safetensors and canvas.safetensors beside it are taken along."""
    if not path.exists():
        raise ModelNotFound(f"no checkpoint at {path}")
    folder = path if path.is_dir() else path.parent
    skill, canvas = folder / "adapters" / "skill.safetensors", folder / "adapters" / "canvas.safetensors"
    return Checkpoint(path.stem, path, skill if skill.is_file() else None, canvas if canvas.is_file() else None)
