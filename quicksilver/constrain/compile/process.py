"""One compile process as the pool sees it: start, request, heartbeat, cause of death, restart with backoff.

A death that the source caused (processor time, memory, a crash of the compiler) is an Outcome. Any other death or stall
raises ProcessLost, after which the same source may be sent to a fresh process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from itertools import count
from logging import getLogger

import msgspec

from quicksilver.constrain.compile.worker import HEADER, Outcome

logger = getLogger(__name__)

# Wall time for the imports of a new process, and the part of it that may pass without processor time.
START_LIMIT_S = 30.0
START_STALL_S = 5.0
# Wait after the first failed start; doubles up to the second value.
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 5.0
# Signals that only another process or the kernel sends. Exit status 0 means that stdin was closed.
OUTSIDE_DEATHS = frozenset({0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, -signal.SIGQUIT})
# What reading from or writing to a dead process raises.
BROKEN_PIPE = (asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError)


class ProcessLost(Exception):
    """The process died or stalled for a reason other than its source."""


class CompileProcess:
    """A process that is started, used by one request at a time, and restarted when it is lost."""

    def __init__(self, limit_s: float, memory_bytes: int, stall_s: float) -> None:
        # Whether the process has started and did not miss its last reply.
        self.is_ready = False
        # Whether a request may be sent: ready, and every earlier request has been answered.
        self.is_idle = False
        self._limit_s = limit_s
        self._memory_bytes = memory_bytes
        self._stall_s = stall_s
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        """None unless the process is alive."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    @property
    def _running(self) -> Process:
        if self._process is None:
            raise ProcessLost("the process is not running")
        return self._process

    async def start(self) -> None:
        """Ends the old process and starts a new one; raises ProcessLost unless it becomes ready."""
        await self.kill()
        arguments = ("-m", "quicksilver.constrain.compile.worker", str(self._memory_bytes), str(self._limit_s))
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdin=PIPE, stdout=PIPE, env=minimal_environment()
        )
        try:
            async with asyncio.timeout(START_LIMIT_S):
                await self._read(START_STALL_S)
        except (*BROKEN_PIPE, TimeoutError) as error:
            raise ProcessLost("the process did not start") from error
        self.is_ready = self.is_idle = True

    async def restart(self, max_attempts: int | None = None) -> None:
        """Starts a new process; tries again with backoff until one is ready or `max_attempts` have failed."""
        backoff_s = FIRST_BACKOFF_S
        for attempt in count(1):
            try:
                return await self.start()
            except (ProcessLost, OSError) as error:
                if attempt == max_attempts:
                    raise
                logger.warning("compile process: %s; next start in %.1f s", error, backoff_s)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def compile(self, data: bytes) -> Outcome:
        """The outcome for an encoded source; ProcessLost if the process was stopped or killed from outside."""
        try:
            return msgspec.json.decode(await self._exchange(data), type=Outcome)
        except BROKEN_PIPE as error:
            outcome = await self._verdict()
            if outcome is None:
                raise ProcessLost("the process was killed") from error
            return outcome

    async def answers(self) -> bool:
        """Heartbeat: whether an empty request is answered."""
        try:
            return await self._exchange(b"") == b""
        except (*BROKEN_PIPE, ProcessLost):
            return False

    async def kill(self) -> int:
        """Ends the process; returns its exit status, which is unchanged if the process was dead already."""
        self.is_ready = self.is_idle = False
        process = self._process
        if process is None:
            return 0
        if process.returncode is None:
            process.kill()
        status = await process.wait()
        # asyncio closes the pipes of a dead process only on request, and warns about open ones at exit.
        process._transport.close()  # type: ignore[attr-defined]
        return status

    async def _verdict(self) -> Outcome | None:
        """Why the process died, if its source was the cause."""
        status = await self.kill()
        if status in OUTSIDE_DEATHS:
            return None
        if status == -signal.SIGPROF:
            return Outcome(error=f"The schema takes more than {self._limit_s:g} s to compile; simplify it.")
        return Outcome(error="The schema needs too much memory to compile; simplify it.")

    async def _exchange(self, data: bytes) -> bytes:
        self.is_idle = False
        stdin = self._running.stdin
        assert stdin is not None
        stdin.write(HEADER.pack(len(data)) + data)
        await stdin.drain()
        reply = await self._read(self._stall_s)
        self.is_idle = True
        return reply

    async def _read(self, stall_s: float) -> bytes:
        """The next frame. Raises ProcessLost if none came and the process used no processor time for `stall_s`."""
        frame = asyncio.ensure_future(self._read_frame())
        try:
            spent = self._processor_time()
            while not (await asyncio.wait({frame}, timeout=stall_s))[0]:
                before, spent = spent, self._processor_time()
                if spent == before:
                    self.is_ready = False
                    raise ProcessLost(f"the process made no progress for {stall_s:g} s")
            return frame.result()
        finally:
            frame.cancel()

    async def _read_frame(self) -> bytes:
        stdout = self._running.stdout
        assert stdout is not None
        (length,) = HEADER.unpack(await stdout.readexactly(HEADER.size))
        return await stdout.readexactly(length)

    def _processor_time(self) -> int:
        """Clock ticks that the process has used; -1 if it no longer exists."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return -1
        return int(fields[11]) + int(fields[12])


def minimal_environment() -> dict[str, str]:
    """Variables that a compile process needs to import this package. No secrets."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "RAYON_NUM_THREADS": "1"}
