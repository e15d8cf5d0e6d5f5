"""Seconds by phase of one thread, for the load measurements, and their exchange with another process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

# Of the engine's thread, then of the threads after it on the way of a token to its client.
ENGINE_PHASES = ("plan", "forward", "launch", "wait", "commit", "rest")
WORKER_PHASES = (*ENGINE_PHASES, "emit", "socket")


class SharedSeconds(MutableMapping[str, float]):
    """The seconds of `WORKER_PHASES` in a file that one process writes and another one reads."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8 * len(WORKER_PHASES)))
        self._values = np.memmap(path, np.float64, "r+", shape=(len(WORKER_PHASES),))

    def __getitem__(self, phase: str) -> float:
        return float(self._values[WORKER_PHASES.index(phase)])

    def __setitem__(self, phase: str, seconds: float) -> None:
        self._values[WORKER_PHASES.index(phase)] = seconds

    def __delitem__(self, phase: str) -> None:
        self[phase] = 0.0

    def __iter__(self) -> Iterator[str]:
        return iter(WORKER_PHASES)

    def __len__(self) -> int:
        return len(WORKER_PHASES)


@dataclass
class PhaseClock:
    """Seconds by phase. Nested phases are subtracted from the one that calls them. A clock belongs to one thread."""

    seconds: MutableMapping[str, float] = field(default_factory=Counter)
    now: Callable[[], float] = time.perf_counter
    _inner: list[float] = field(default_factory=lambda: [0.0])

    def timed(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            start = self.now()
            self._inner.append(0.0)
            try:
                return call(*args, **options)
            finally:
                total = self.now() - start
                self.seconds[phase] += total - self._inner.pop()
                self._inner[-1] += total

        return run

    def attach(self, engine: Any) -> None:
        """Times the phases of this engine from now on."""
        for owner, name, phase in _places(engine):
            setattr(owner, name, self.timed(phase, getattr(owner, name)))


def detach(engine: Any) -> None:
    """Removes the timers, so that calls reach the methods of the class again."""
    for owner, name, _ in _places(engine):
        vars(owner).pop(name, None)


def _places(engine: Any) -> list[tuple[Any, str, str]]:
    slots = engine.slots
    places = [
        (engine, "step", "rest"), (engine.scheduler, "plan", "plan"), (engine.backend, "run", "forward"),
        (engine, "_commit", "commit"), (slots, "launch", "launch"), (slots, "commit", "commit"),
        (None if slots is None else slots.batch, "wait", "wait"),
    ]  # fmt: skip
    return [place for place in places if place[0] is not None]
