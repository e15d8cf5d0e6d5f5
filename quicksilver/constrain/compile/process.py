"""A child process with limits, for a pool: start, request, heartbeat, cause of death, restart with backoff.

A death that the request caused (processor time, memory, a crash) raises RequestKilledProcess; for a compile process it
is an Outcome. Any other death or stall raises ProcessLost, after which the same request may be sent to a fresh process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Coroutine, Sequence
from itertools import count
from logging import getLogger
from typing import Any

import msgspec

from quicksilver.constrain.compile.frames import HEADER
from quicksilver.constrain.compile.worker import Outcome

logger = getLogger(__name__)

# Wall time for the imports of a new process, and the part of it that may pass without processor time.
START_LIMIT_S = 30.0
START_STALL_S = 2.0
# Wait for the exit of a process that closed its pipes.
EXIT_WAIT_S = 1.0
# Turns of the event loop in which a reply that lies in the pipe is read.
LATE_TURNS = 10
# Wait after the first failed start; doubles up to the second value.
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 5.0
# Signals that only another process or the kernel sends. Exit status 0 means that stdin was closed; asyncio reports 255
# where the true status was lost.
OUTSIDE_DEATHS = frozenset({0, 255, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, -signal.SIGQUIT})
# What reading from or writing to a dead process raises.
BROKEN_PIPE = (asyncio.IncompleteReadError, ConnectionError)


class ProcessLost(Exception):
    """The process died or stalled for a reason other than its source."""


class RequestKilledProcess(Exception):
    """The request used more processor time or memory than allowed, or crashed the process."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.is_late = status == -signal.SIGPROF


class LimitedProcess:
    """A process that is started, used by one request at a time, and restarted when it is lost.

    `arguments` follow the interpreter. The program writes an empty frame when it is ready and answers each frame with
    one frame, an empty one with an empty one.
    """

    def __init__(self, arguments: Sequence[str], stall_s: float, setup: bytes = b"") -> None:
        # Whether the process has started and did not miss its last reply.
        self.is_ready = False
        # Whether a request may be sent: ready, and every earlier request has been answered.
        self.is_idle = False
        self._arguments = arguments
        self._stall_s = stall_s
        # Sent to a new process before it reports that it is ready.
        self._setup = setup
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
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *self._arguments, stdin=PIPE, stdout=PIPE, env=minimal_environment()
        )
        try:
            async with asyncio.timeout(START_LIMIT_S):
                await self._watch(self._transfer(self._setup or None), START_STALL_S)
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
                logger.warning("%s: %s; next start in %.1f s", self._arguments[1], error, backoff_s)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def request(self, data: bytes) -> bytes:
        """The reply to `data`; ProcessLost if the process was stopped or killed from outside."""
        try:
            return await self._exchange(data)
        except BROKEN_PIPE as error:
            status = await self._exit_status()
            if status in OUTSIDE_DEATHS:
                raise ProcessLost("the process was killed") from error
            raise RequestKilledProcess(status) from error

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

    async def _exit_status(self) -> int:
        """The exit status of a process that closed its pipes.

        It is awaited before `kill`: a signal to a process that has just died lets `subprocess` reap it, and asyncio
        then reports 255 instead of the true status.
        """
        try:
            async with asyncio.timeout(EXIT_WAIT_S):
                await self._running.wait()
        except TimeoutError:
            logger.warning("%s: closed its pipes and did not exit", self._arguments[1])
        return await self.kill()

    async def _exchange(self, data: bytes) -> bytes:
        self.is_idle = False
        reply = await self._watch(self._transfer(data), self._stall_s)
        self.is_idle = True
        return reply

    async def _write(self, data: bytes) -> None:
        stdin = self._running.stdin
        assert stdin is not None
        try:
            stdin.write(HEADER.pack(len(data)) + data)
            await stdin.drain()
        except RuntimeError as error:  # what uvloop raises for a closed pipe
            raise BrokenPipeError("the process is gone") from error

    async def _watch(self, transfer: Coroutine[Any, Any, bytes], stall_s: float) -> bytes:
        """The result of `transfer`. Raises ProcessLost if the process has no part in it for `stall_s`: it neither used
        processor time nor waited for a processor or a disk at two checks in a row."""
        task, num_idle = asyncio.ensure_future(transfer), 0
        try:
            spent, _ = self._activity()
            while not (await asyncio.wait({task}, timeout=stall_s / 2))[0]:
                before, (spent, is_active) = spent, self._activity()
                num_idle = 0 if is_active or spent != before else num_idle + 1
                if num_idle > 1 and not await _ends_soon(task):
                    self.is_ready = False
                    raise ProcessLost(f"the process made no progress for {stall_s:g} s")
            return task.result()
        finally:
            task.cancel()

    async def _transfer(self, data: bytes | None) -> bytes:
        """Writes `data` as a frame, unless it is None, and reads the next frame."""
        if data is not None:
            await self._write(data)
        return await self._read_frame()

    async def _read_frame(self) -> bytes:
        stdout = self._running.stdout
        assert stdout is not None
        (length,) = HEADER.unpack(await stdout.readexactly(HEADER.size))
        return await stdout.readexactly(length)

    def _activity(self) -> tuple[int, bool]:
        """Clock ticks that the process has used, -1 if it no longer exists; and whether it runs, or waits for a
        processor or a disk."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return -1, False
        return int(fields[11]) + int(fields[12]), fields[0] in (b"R", b"D")


async def _ends_soon(task: asyncio.Future[bytes]) -> bool:
    """Whether the input that has arrived ends the task. While this process was busy, none was read."""
    for _ in range(LATE_TURNS):
        await asyncio.sleep(0)
    return task.done()


class CompileProcess(LimitedProcess):
    """A process that compiles grammars."""

    def __init__(self, limit_s: float, memory_bytes: int, stall_s: float) -> None:
        program = ("-m", "quicksilver.constrain.compile.worker", str(memory_bytes), str(limit_s))
        super().__init__(program, stall_s)
        self._limit_s = limit_s

    async def compile(self, data: bytes) -> Outcome:
        """The outcome for an encoded source."""
        try:
            return msgspec.json.decode(await self.request(data), type=Outcome)
        except msgspec.DecodeError as error:
            await self.kill()
            raise ProcessLost("the process sent a malformed reply") from error
        except RequestKilledProcess as error:
            need = f"takes more than {self._limit_s:g} s" if error.is_late else "needs too much memory"
            return Outcome(error=f"The schema or grammar {need} to compile; simplify it.")


def minimal_environment() -> dict[str, str]:
    """Variables that a child process needs to import this package. No secrets."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "RAYON_NUM_THREADS": "1"}
