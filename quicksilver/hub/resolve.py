"""Resolve a model name or a path to the files to load."""

from __future__ import annotations

from pathlib import Path

from quicksilver.errors import ModelNotFound
from quicksilver.hub.catalogue import BaseFile, adapter_path, load_catalogue
from quicksilver.hub.files import ModelFiles, default_home
from quicksilver.hub.snapshots import HubName, parse_hub_name, pulled_files

__all__ = ["ModelFiles", "base_path", "default_home", "original_path", "resolve"]


def base_path(base: BaseFile, home: Path) -> Path:
    return home / "models" / base.name / base.file


def original_path(base: BaseFile, home: Path) -> Path:
    """A link to the original checkpoint (`pull.adopt`), used instead of the downloaded file and its sha256."""
    return home / "models" / base.name / "original"


def resolve(name_or_path: str, home: Path | None = None) -> ModelFiles:
    """For a path, the checkpoint at this path. For owner/name[@revision], the pulled snapshot of this repository. For a
    catalogue name, the downloaded base and the adapters of the model.

    Raises ModelNotFound, with the command that downloads a model that is not on this machine.
    """
    path = Path(name_or_path)
    if path.is_dir() or path.suffix == ".gguf":
        return _at_path(path)
    if (hub_name := parse_hub_name(name_or_path)) is not None:
        return _pulled(hub_name, home)
    catalogue = load_catalogue()
    model = catalogue.model(name_or_path)
    base, home = catalogue.bases[model.base], home or default_home()
    original = original_path(base, home)
    weights = original if original.is_dir() else base_path(base, home)
    if not weights.exists():
        raise ModelNotFound(f"{model.name} is not on this machine; run: quicksilver pull {model.name}")
    skill = adapter_path(model.skill) if model.skill else None
    canvas = adapter_path(model.canvas) if model.canvas else None
    return ModelFiles(model.name, weights, skill, canvas, "" if weights == original else base.sha256)


def _at_path(path: Path) -> ModelFiles:
    if not path.exists():
        raise ModelNotFound(f"there is no checkpoint at {path}")
    return ModelFiles.in_folder(path.name if path.is_dir() else path.stem, path)


def _pulled(name: HubName, home: Path | None) -> ModelFiles:
    files = pulled_files(name, home)
    if files is None:
        raise ModelNotFound(f"{name} is not on this machine; run: quicksilver pull {name}")
    return files
