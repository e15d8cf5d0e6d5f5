"""Kills and stops child processes of a server, and measures the seconds until each was replaced."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

# Kinds of child processes by the module that they run.
KINDS = {
    "quicksilver.worker": "worker",
    "quicksilver.constrain.compile.worker": "compile",
    "quicksilver.server.encoding.worker": "encoder",
}
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    # Empty for a process that runs no module of KINDS.
    kind: str
    # As in `/proc/PID/stat`: `T` is stopped, `Z` has ended.
    state: str
    rss_mb: float

    @property
    def is_running(self) -> bool:
        return self.state not in ("T", "t", "Z", "X")


@dataclass(frozen=True, slots=True)
class Fault:
    """A signal to one process. `seconds` is None if it was not replaced in time."""

    kind: str
    signal: str
    seconds: float | None


def process_tree(pid: int) -> list[Process]:
    """The process and all processes below it."""
    parents, states = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(folder.name)], states[int(folder.name)] = int(parent), state
    below = defaultdict(list)
    for child, parent in parents.items():
        below[parent].append(child)
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        waiting += below[one]
        if one in states:
            found.append(Process(one, _kind_of(one), states[one], _rss_mb(one)))
    return found


def _kind_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return ""
    return KINDS.get(words[words.index("-m") + 1], "") if "-m" in words[:-1] else ""


def _rss_mb(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


async def inject(rng: random.Random, pid: int, limit_s: float) -> Fault | None:
    """Sends a random signal to a random process of a random kind and waits until as many run as before. None if the
    server has no such process now."""
    by_kind = defaultdict(list)
    for process in process_tree(pid):
        if process.kind and process.is_running:
            by_kind[process.kind].append(process.pid)
    if not by_kind:
        return None
    kind, chosen = rng.choice(sorted(by_kind)), rng.choice(SIGNALS)
    victim, count = rng.choice(by_kind[kind]), len(by_kind[kind])
    try:
        os.kill(victim, chosen)
    except ProcessLookupError:
        return None
    started = time.monotonic()
    while time.monotonic() < started + limit_s:
        others = [p for p in process_tree(pid) if p.kind == kind and p.is_running and p.pid != victim]
        if len(others) >= count:
            return Fault(kind, chosen.name, round(time.monotonic() - started, 2))
        await asyncio.sleep(0.1)
    return Fault(kind, chosen.name, None)
