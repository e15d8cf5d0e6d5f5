"""ClusterConfig: the file of `quicksilver cluster`, checked."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec

from quicksilver.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class ClusterModel:
    """One model and its replicas. Resources are those of one replica."""

    model: str
    min_replicas: int = 1
    max_replicas: int = 1
    num_gpus: float = 0.0
    num_cpus: float = 1.0
    # Custom resources of Ray, by name.
    resources: dict[str, float] = field(default_factory=dict)
    # Fields of LoadConfig and EngineConfig.
    load: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    # Open requests that one replica should have; more start another one.
    target_open: float = 16.0
    # Requests that one replica takes; further ones wait in the API process.
    max_open: int = 256
    upscale_delay_s: float = 10.0
    downscale_delay_s: float = 300.0

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise ValueError(f"{self.model}: min_replicas is at least 1 and at most max_replicas")
        if self.max_open < 1 or self.target_open <= 0:
            raise ValueError(f"{self.model}: max_open and target_open are more than 0")


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    models: tuple[ClusterModel, ...]
    # Address of a running Ray cluster; empty: `cluster up` starts one on this machine.
    address: str = ""
    # Seconds that a replica has to finish its open requests when it is removed.
    drain_s: float = 60.0
    # Folder whose modules the replicas import before installed ones; for development.
    python_path: str = ""

    @classmethod
    def read(cls, path: Path) -> ClusterConfig:
        """Raises InvalidRequest with the file and the field."""
        try:
            table = tomllib.loads(path.read_text())
        except OSError as error:
            raise InvalidRequest(f"cannot read {path}: {error.strerror}", param="cluster") from error
        except ValueError as error:
            raise InvalidRequest(f"{path}: {error}", param="cluster") from None
        return cls.parse(table, str(path))

    @classmethod
    def parse(cls, table: dict[str, Any], source: str) -> ClusterConfig:
        """Raises InvalidRequest with the source and the field."""
        try:
            _check_names(table, cls)
            for model in table.get("models", ()):
                _check_names(model, ClusterModel)
            found = msgspec.convert(table, cls, strict=False)
        except (ValueError, msgspec.ValidationError) as error:
            raise InvalidRequest(f"{source}: {error}", param="cluster") from None
        names = [model.model for model in found.models]
        if not names or len(set(names)) != len(names):
            raise InvalidRequest(f"{source}: give each model once, in a table [[models]]", param="cluster")
        return found

    def find(self, model: str) -> ClusterModel:
        return next(each for each in self.models if each.model == model)


def _check_names(table: dict[str, Any], record: type) -> None:
    known = [each.name for each in fields(record)]
    unknown = next((name for name in table if name not in known), None)
    if unknown is not None:
        raise ValueError(f"unknown setting {unknown!r}; known are {', '.join(known)}")


def app_name(model: str) -> str:
    """The name of a model's Ray Serve application and deployment."""
    return "engine-" + "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in model)
