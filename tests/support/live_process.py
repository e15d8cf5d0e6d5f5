"""The scripted server of `tests.contract.live` as a process of its own, so that a client does not share its lock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LiveProcess:
    url: str
    pid: int

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextmanager
def live_process(home: Path) -> Iterator[LiveProcess]:
    command = [sys.executable, "-m", "tests.contract.live", str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield LiveProcess(process.stdout.readline().strip(), process.pid)
        finally:
            process.stdin.close()
            process.wait(30)
