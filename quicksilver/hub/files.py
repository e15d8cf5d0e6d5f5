"""The files of one model on this machine, and the folder that quicksilver keeps its own files in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from quicksilver.errors import CheckpointRefused

# A header of an adapter has a few thousand entries.
MAX_HEADER_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of one model."""

    name: str
    weights: Path  # a GGUF file, or a directory of safetensors
    skill: Path | None = None
    canvas: Path | None = None
    sha256: str = ""  # of the weights, if the catalogue states it

    @classmethod
    def in_folder(cls, name: str, weights: Path) -> ModelFiles:
        """A checkpoint with the adapters `adapters/{skill,canvas}.safetensors` next to it, if they exist."""
        folder = weights if weights.is_dir() else weights.parent
        skill, canvas = folder / "adapters" / "skill.safetensors", folder / "adapters" / "canvas.safetensors"
        return cls(name, weights, skill if skill.is_file() else None, canvas if canvas.is_file() else None)

    def with_adapters(self, adapters: Iterable[Path]) -> ModelFiles:
        """The same weights with these adapter files in place of those of their kind."""
        files = self
        for path in adapters:
            files = replace(files, canvas=path) if is_canvas_adapter(path) else replace(files, skill=path)
        return files


def is_canvas_adapter(path: Path) -> bool:
    """Whether an adapter file has mask embeddings; otherwise it is a skill adapter."""
    return has_tensor(path, "mask_embedding")


def has_tensor(path: Path, name: str) -> bool:
    """Whether an adapter file has a tensor of this name, from its header."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= MAX_HEADER_BYTES else None
    except OSError as error:
        raise CheckpointRefused(f"adapter {path}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointRefused(f"adapter {path} is not a safetensors file") from error
    if not isinstance(header, dict):
        raise CheckpointRefused(f"adapter {path} is not a safetensors file")
    return name in header


def default_home() -> Path:
    """The folder of pulled models and caches: $QUICKSILVER_HOME, or ~/.cache/quicksilver."""
    return Path(os.environ.get("QUICKSILVER_HOME") or Path.home() / ".cache" / "quicksilver")
