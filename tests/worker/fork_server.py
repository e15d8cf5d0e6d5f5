"""Starts workers with the tiny model by forking a process that has imported torch: milliseconds instead of seconds.

`python -m tests.worker.fork_server [options of worker_program]` reads `start PATH` and `stop PID` from standard input
and writes `started PID` and `ended PID CODE`. Workers are real processes: they can be killed, and they end with their
parent.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from quicksilver.worker.process import STOP_S, WorkerProcess


class ForkedWorker(WorkerProcess):
    def __init__(self, server: ForkServer, pid: int, socket_path: Path) -> None:
        self._server, self._pid, self.socket_path = server, pid, socket_path

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def exit_code(self) -> int | None:
        return self._server.exit_codes.get(self._pid)

    def kill(self, reason: str) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    async def stop(self) -> None:
        if self.exit_code is None:
            self._server.tell(f"stop {self._pid}")
        deadline = asyncio.get_running_loop().time() + STOP_S
        while self.exit_code is None:
            if asyncio.get_running_loop().time() > deadline:
                self.kill("it did not stop")
            await asyncio.sleep(0.01)


class ForkServer:
    """The client of the forking process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._started: asyncio.Queue[int] = asyncio.Queue()
        self.exit_codes: dict[int, int] = {}
        self._reading = asyncio.create_task(self._read())

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")

    async def start(self, command: Sequence[str], socket_path: Path) -> WorkerProcess:
        self.tell(f"start {socket_path}")
        return ForkedWorker(self, await self._started.get(), socket_path)

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            event, pid, *code = line.split()
            if event == b"started":
                self._started.put_nowait(int(pid))
            else:
                self.exit_codes[int(pid)] = int(code[0])


@asynccontextmanager
async def fork_server(*options: str) -> AsyncIterator[ForkServer]:
    command = [sys.executable, "-m", "tests.worker.fork_server", *options]
    pipe = asyncio.subprocess.PIPE
    server = ForkServer(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))
    try:
        yield server
    finally:
        await server.close()


def fork(options: list[str], path: str, pipes: dict[int, int]) -> int:
    """Starts a worker. Its standard input is a pipe whose other end only this process holds."""
    from tests.worker import worker_program

    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(read_end)
        pipes[pid] = write_end
        return pid
    for other in (*pipes.values(), write_end):
        os.close(other)
    os.dup2(read_end, 0)
    os.dup2(2, 1)
    worker_program.main([*options, "--socket", path])
    os._exit(0)


def serve(options: list[str]) -> None:
    pipes: dict[int, int] = {}
    unread = b""
    while True:
        if select.select([0], [], [], 0.01)[0]:
            if not (piece := os.read(0, 65536)):
                return
            *lines, unread = (unread + piece).split(b"\n")
            for line in lines:
                command, _, argument = line.decode().partition(" ")
                if command == "start":
                    tell(f"started {fork(options, argument, pipes)}")
                elif (pipe := pipes.pop(int(argument), None)) is not None:
                    os.close(pipe)
        reap(pipes)


def reap(pipes: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if pid in pipes:
                os.close(pipes.pop(pid))
            tell(f"ended {pid} {os.waitstatus_to_exitcode(status)}")


def tell(line: str) -> None:
    os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    from tests.worker import worker_program  # noqa: F401  imports torch before the first fork

    serve(sys.argv[1:])
