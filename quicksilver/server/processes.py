"""Several API processes on one port: their listening sockets, and the supervision of the processes.

Every process has a listening socket of its own on the shared address, and the kernel spreads connections over them. The
supervisor holds all sockets, so connections that wait for a process that died are accepted by its successor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from quicksilver.errors import Unavailable
from quicksilver.server.run import FORCED_EXIT_S

log = logging.getLogger("quicksilver.supervisor")

FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0
BACKLOG = 2048
# On a CPU most cores belong to the engine.
CORES_PER_PROCESS, CORES_PER_PROCESS_WITH_GPU, MAX_PROCESSES = 4, 2, 8
# Present where the driver of a GPU is loaded. The API processes do not import torch.
GPU_DEVICE = Path("/dev/nvidia0")


def default_num_processes(device: str) -> int:
    """One process per four cores, or per two cores if `device` (auto, cpu, cuda) is a GPU."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    has_gpu = device.startswith("cuda") or (device == "auto" and GPU_DEVICE.exists())
    return max(1, min(MAX_PROCESSES, cores // (CORES_PER_PROCESS_WITH_GPU if has_gpu else CORES_PER_PROCESS)))


def listening_sockets(host: str, port: int, number: int) -> list[socket.socket]:
    """Sockets that listen on one address; port 0 takes a free port for all of them."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sockets: list[socket.socket] = []
    for _ in range(number):
        chosen = sockets[0].getsockname()[1] if sockets else port
        sockets.append(
            socket.create_server((host.strip("[]"), chosen), family=family, backlog=BACKLOG, reuse_port=True)
        )
    return sockets


class ApiProcesses:
    """Starts one process per socket and replaces those that end.

    A process gets the number of its socket as the last argument and `payload` as the first line of its standard input,
    which stays open as long as the supervisor lives. The caller passes on what it reports: `mark_serving` and
    `mark_drained`.
    """

    def __init__(
        self,
        command: Sequence[str],
        payload: bytes,
        sockets: Sequence[socket.socket],
        env: Mapping[str, str],
        on_end: Callable[[int], None] = lambda pid: None,
    ) -> None:
        self._command = list(command)
        self._payload = payload
        self._sockets = sockets
        self._env = dict(env)
        self._on_end = on_end
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._serving: set[int] = set()
        self._drained: set[int] = set()
        self._changed = asyncio.Event()
        self._keepers: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self.num_restarts = 0

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]

    def mark_serving(self, pid: int) -> None:
        self._serving.add(pid)
        self._changed.set()

    def mark_drained(self, pid: int) -> None:
        self._drained.add(pid)
        self._changed.set()

    async def start(self) -> None:
        """Returns when every process serves; raises if one ends before."""
        self._keepers = [asyncio.create_task(self._keep(slot)) for slot in range(len(self._sockets))]
        while len(self._serving) < len(self._sockets):
            self._changed.clear()
            await self._changed.wait()
            if self.num_restarts and len(self._serving) < len(self._sockets):
                raise Unavailable("an API process did not start; its log above says why")

    async def drain(self) -> None:
        """Sends SIGTERM. Each process refuses new requests and finishes its open replies; returns when all have."""
        self._signal_all()
        while any(pid not in self._drained for pid in self._live_pids()):
            self._changed.clear()
            await self._changed.wait()

    def _live_pids(self) -> list[int]:
        return [process.pid for process in self._processes.values() if process.returncode is None]

    async def stop(self) -> None:
        """After `drain`, or instead: a SIGTERM that ends open replies. What is left after some seconds is killed."""
        self._signal_all()
        _, left = await asyncio.wait(self._keepers, timeout=FORCED_EXIT_S + 2) if self._keepers else (None, set())
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await asyncio.gather(*left, return_exceptions=True)
        for listening in self._sockets:
            listening.close()

    def _signal_all(self) -> None:
        self._is_stopping = True
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)

    async def _keep(self, slot: int) -> None:
        """Runs one process after another: without one, the connections of its socket are not accepted."""
        pause_s = FIRST_PAUSE_S
        while not self._is_stopping:
            was_serving = await self._run_once(slot)
            self._changed.set()
            if not self._is_stopping:
                self.num_restarts += 1
                pause_s = FIRST_PAUSE_S if was_serving else min(2 * pause_s, MAX_PAUSE_S)
                await asyncio.sleep(pause_s)

    async def _run_once(self, slot: int) -> bool:
        """Returns when the process has ended, or could not be started. True if it has served."""
        try:
            process = self._processes[slot] = await self._spawn(slot)
        except OSError as error:
            log.error("an API process cannot be started; trying again: %s", error)
            return False
        code = await process.wait()
        was_serving = process.pid in self._serving
        self._serving.discard(process.pid)
        self._on_end(process.pid)
        if not self._is_stopping:
            log.error("an API process ended; starting another", extra={"exit_code": code, "pid": process.pid})
        return was_serving

    async def _spawn(self, slot: int) -> asyncio.subprocess.Process:
        number = self._sockets[slot].fileno()
        # In a session of its own: Ctrl-C in a terminal reaches the supervisor only, which drains all processes.
        process = await asyncio.create_subprocess_exec(
            *self._command,
            str(number),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(number,),
            start_new_session=True,
            env=self._env,
        )
        assert process.stdin is not None
        process.stdin.write(self._payload + b"\n")
        return process
