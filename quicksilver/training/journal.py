"""Reports of a run: progress lines, a JSON line per report, TensorBoard scalars where that is installed.

Writes only under the run's folder and to one text stream. Does not raise if TensorBoard is missing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, TextIO


class Listener(Protocol):
    """Takes the reports of all journals, in place of lines on the screen."""

    def report(self, stage: str, scalars: Mapping[str, float]) -> None: ...


class Journal:
    """One per stage; `scalars.jsonl` grows, so a resumed run continues it."""

    # With a listener, lines are written to `STAGE.log` instead of the stream.
    listener: ClassVar[Listener | None] = None

    def __init__(self, folder: Path, stage: str, stream: TextIO | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._stage, self._stream, self._began = stage, stream or sys.stdout, time.monotonic()
        self._file, self._log = folder / f"{stage}.jsonl", folder / f"{stage}.log"
        self._board = _tensorboard(folder / "tensorboard" / stage)

    def print_line(self, text: str) -> None:
        line = f"[{time.monotonic() - self._began:7.1f}s] {self._stage}: {text}\n"
        if self.listener is not None:
            with self._log.open("a") as log:
                log.write(line)
            return
        self._stream.write(line)
        self._stream.flush()

    def report(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record scalars of one step and print them in one line."""
        if self.listener is not None:
            self.listener.report(self._stage, scalars)
        with self._file.open("a") as out:
            out.write(json.dumps({"step": step, **scalars}) + "\n")
        if self._board is not None:
            for name, value in scalars.items():
                self._board.add_scalar(f"{self._stage}/{name}", value, step)
        self.print_line(f"step {step} " + " ".join(f"{name} {_short(value)}" for name, value in scalars.items()))

    def note(self, facts: Mapping[str, Any]) -> None:
        """Record facts that are no scalars: samples, tables, counts."""
        with self._file.open("a") as out:
            out.write(json.dumps(dict(facts)) + "\n")

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except (ImportError, AttributeError):
        return None
    return SummaryWriter(str(folder))


def _short(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2e}" if 0 < abs(value) < 1e-2 else f"{value:.3f}"
