"""WorkerProcess: one process of the engine worker, from its start to its end.

The worker ends when its standard input closes, so it never outlives its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from quicksilver.worker.step_record import record_path

log = logging.getLogger("quicksilver.supervisor")

STOP_S = 5.0
# Workers that ended and whose files are kept.
KEPT_ENDED = 2
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
# The command of a worker and its socket path -> the started process.
StartProcess = Callable[[Sequence[str], Path], Awaitable["WorkerProcess"]]


class WorkerProcess:
    def __init__(self, process: asyncio.subprocess.Process, socket_path: Path) -> None:
        self._process = process
        self.socket_path = socket_path

    @classmethod
    async def start(cls, command: Sequence[str], socket_path: Path) -> WorkerProcess:
        """`--socket PATH` is appended to the command."""
        arguments = (*command, "--socket", str(socket_path))
        return cls(await asyncio.create_subprocess_exec(*arguments, stdin=asyncio.subprocess.PIPE), socket_path)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while the process runs."""
        return self._process.returncode

    @property
    def is_stopped(self) -> bool:
        """Whether the process is stopped by a signal (Linux; elsewhere False)."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
        except OSError:
            return False

    @property
    def is_listening(self) -> bool:
        """Whether the process has opened its socket, also if it has ended since."""
        return self.socket_path.exists()

    async def connect(self, start_s: float, stopped_s: float) -> Streams | None:
        """The worker opens its socket when the model is loaded. None, and the process is killed, if that takes longer
        than `start_s` or if the process is stopped for longer than `stopped_s`; None also if it ends."""
        loop = asyncio.get_running_loop()
        now = last_running = loop.time()
        deadline = now + start_s
        while self.exit_code is None and now < deadline and now - last_running <= stopped_s:
            # It is not there yet, or this process has no file descriptor left for it.
            with contextlib.suppress(OSError):
                return await asyncio.open_unix_connection(str(self.socket_path))
            await asyncio.sleep(0.02)
            now = loop.time()
            last_running = last_running if self.is_stopped else now
        if self.exit_code is None:
            self.kill("it did not start in time, or was stopped")
        return None

    async def wait_until_lost(self, check_s: float) -> None:
        """Returns when the process has ended. One that is stopped at two checks in a row is killed."""
        ended = asyncio.ensure_future(self._process.wait())
        try:
            was_stopped = False
            while not (await asyncio.wait({ended}, timeout=check_s))[0]:
                is_stopped = self.is_stopped
                if was_stopped and is_stopped:
                    self.kill("it is stopped")
                was_stopped = is_stopped
        finally:
            ended.cancel()

    def kill(self, reason: str) -> None:
        log.error("killing the engine worker: %s", reason)
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def stop(self) -> None:
        """Closes its standard input; kills it if it has not ended after `STOP_S`."""
        if self.exit_code is not None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_S)
        except TimeoutError:
            self.kill("it did not stop")
            await self._process.wait()


class LeftFiles:
    """The files of workers that ended. Those of the newest are kept: other API processes may still read from a step
    record which requests the last step had."""

    def __init__(self) -> None:
        self._sockets: deque[Path] = deque()

    def add(self, socket_path: Path) -> None:
        self._sockets.append(socket_path)
        while len(self._sockets) > KEPT_ENDED:
            remove_files(self._sockets.popleft())


def remove_files(socket_path: Path) -> None:
    for path in (socket_path, record_path(socket_path)):
        path.unlink(missing_ok=True)


def available_bytes() -> int:
    """Main memory that can be used without swapping."""
    with open("/proc/meminfo") as meminfo:
        facts = dict(line.split(":") for line in meminfo)
    return int(facts["MemAvailable"].split()[0]) * 1024
