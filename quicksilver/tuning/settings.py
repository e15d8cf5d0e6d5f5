"""TrainerSettings: what a trainer process is started with, as one line of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec

from quicksilver.accounts.config import AccountsConfig
from quicksilver.hub.files import ModelFiles
from quicksilver.tuning.jobs import MAX_JOBS


class JsonLine:
    """Base of dataclasses that a process gets as one line of JSON when it starts."""

    __slots__ = ()

    def encode(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=str)

    @classmethod
    def decode(cls, line: bytes) -> Self:
        return msgspec.json.decode(line, type=cls, dec_hook=_decode_path)


@dataclass(frozen=True, slots=True)
class TrainerSettings(JsonLine):
    home: Path
    # Models that can be tuned, by the name that jobs use.
    models: Mapping[str, ModelFiles]
    # For each model that is an adapter of a served model: the name of that model, and the adapter file or folder.
    adapters: Mapping[str, tuple[str, Path]] = field(default_factory=dict)
    # Database URL and configuration of the accounts; None: the objects are in a file of `home`.
    accounts: tuple[str, AccountsConfig] | None = None
    device: str = "auto"
    # CPU threads of training; 0: half of the cores.
    threads: int = 0
    # Evaluation pack (`.jsonl.xz`) that training data is checked against.
    evals: Path | None = None
    # Longest example, in tokens.
    max_example_len: int = 4096
    # Bytes that one project may store.
    stored_bytes: int = 256 * 2**20
    # Jobs of one project that have not ended; proposals count.
    max_jobs: int = MAX_JOBS
    # Days for which captured suggestions are kept.
    stored_days: float = 30.0
    # Seconds between two checkpoints.
    checkpoint_s: float = 20.0
    # Seconds without work after which the process ends.
    idle_s: float = field(default=10.0)


def _decode_path(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(kind)
