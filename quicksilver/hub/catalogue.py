"""The catalogue of models: their base files, with the sha256 of every part, and their adapters.

The data is in `catalogue.json`. A model is a base with up to two adapters, which are files of this package: a skill
adapter (tools, FIM, edits), merged into the base, and a canvas adapter, which drafts.
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
class WheelPart:
    """A wheel in the package registry: a zip file whose `member` is one part of the base file."""

    package: str
    version: str
    sha256: str  # of the wheel
    member: str
    bytes: int  # of the member


@dataclass(frozen=True, slots=True)
class BaseFile:
    """The weight file of an autoregressive base: its parts joined in order."""

    name: str
    file: str
    licence: str
    sha256: str
    parts: tuple[WheelPart, ...]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A model that users can name. Adapters are file names in the folder `hub/adapters` of the package."""

    name: str
    base: str
    about: str
    skill: str | None = None
    canvas: str | None = None
    # The model that answers fill-in-the-middle, next edit and apply edit where this one is served.
    companion: str | None = None


@dataclass(frozen=True, slots=True)
class Catalogue:
    bases: dict[str, BaseFile]
    models: dict[str, CatalogueModel]

    def model(self, name: str) -> CatalogueModel:
        if name not in self.models:
            near = difflib.get_close_matches(name, self.models, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            known = ", ".join(sorted(self.models))
            if name.startswith("ft:"):
                hint = " Tuned models are used through a server: `quicksilver serve` offers them under these names."
            found = f"there is no model, folder or file named {name!r}.{hint}"
            raise ModelNotFound(f"{found} Known models: {known}", param="model")
        return self.models[name]


@cache
def load_catalogue() -> Catalogue:
    data = json.loads(resources.files("quicksilver.hub").joinpath("catalogue.json").read_text())
    bases = {
        name: BaseFile(
            name, entry["file"], entry["licence"], entry["sha256"], tuple(WheelPart(**part) for part in entry["parts"])
        )
        for name, entry in data["bases"].items()
    }
    return Catalogue(bases, {name: CatalogueModel(name, **entry) for name, entry in data["models"].items()})


def adapter_path(file_name: str) -> Path:
    """The path of an adapter of this package."""
    return Path(str(resources.files("quicksilver.hub").joinpath("adapters", file_name)))
