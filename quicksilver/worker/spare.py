"""SpareWorker: a second worker that is loaded before it is needed, on a CPU and while memory allows it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from quicksilver.core import EngineInfo
from quicksilver.worker.process import WorkerProcess, available_bytes, remove_files

log = logging.getLogger("quicksilver.supervisor")

# Seconds before the first spare is started, and before one that replaces a lost worker or spare. Requests come first.
FIRST_DELAY_S, NEXT_DELAY_S = 10.0, 1.0
# The longest of these delays: they double after spares that ended while they loaded, and while memory is short.
MAX_PAUSE_S = 60.0
# Seconds between two checks of a spare. One that is stopped by a signal at two checks in a row is killed.
CHECK_S = 1.0
# Memory that a spare worker leaves to everything else.
RESERVE_BYTES = 2 << 30


class SpareWorker:
    def __init__(self, start: Callable[[], Awaitable[WorkerProcess]]) -> None:
        self._start = start
        self._process: WorkerProcess | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def take(self) -> WorkerProcess | None:
        """The process, which is no longer the spare; None if there is none."""
        process, self._process = self._process, None
        return process

    async def stop(self) -> None:
        if (process := self.take()) is not None:
            await process.stop()

    async def keep(self, info: EngineInfo, delay_s: float) -> None:
        """Starts a process after `delay_s` if there is none, and another one when it ends or is stopped. Runs until it
        is cancelled, which leaves the process as it is."""
        while info.device == "cpu":
            if self._process is None:
                await asyncio.sleep(delay_s)
                delay_s = min(max(2 * delay_s, NEXT_DELAY_S), MAX_PAUSE_S)
                if available_bytes() > needed_bytes(info):
                    with suppress(OSError):  # no process or file descriptor is left: tried again later
                        self._process = await self._start()
            else:
                await self._process.wait_until_lost(CHECK_S)
                delay_s = NEXT_DELAY_S if self._process.is_listening else delay_s
                log.error("the spare worker ended; starting another in %g s", delay_s)
                remove_files(self._process.socket_path)
                self._process = None


def needed_bytes(info: EngineInfo) -> int:
    """Bytes of memory that must be available so that a spare worker is loaded."""
    return RESERVE_BYTES + 2 * info.weight_bytes
