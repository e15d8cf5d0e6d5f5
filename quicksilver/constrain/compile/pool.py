"""Compilation in processes that can be killed: a clock for each source, a bound on memory, a cache for each tenant.

A thread cannot be stopped, so grammars are built elsewhere. A process that is late or dies costs one refusal and is
replaced; the API process never builds a grammar itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from dataclasses import dataclass

import msgspec

from quicksilver.constrain.compile.cache import OutcomeCache
from quicksilver.constrain.compile.fair_queue import Turns
from quicksilver.constrain.compile.worker import HEADER, Outcome
from quicksilver.constrain.source import SpecSource, encode
from quicksilver.core import ConstraintSpec
from quicksilver.errors import InvalidGrammar, Unavailable

START_LIMIT_S = 30.0
"""How long a process may take to import what it needs."""


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Limits of the pool."""

    num_processes: int = 2
    """Sources that are compiled at the same time."""
    limit_s: float = 2.0
    """Wall time for one source."""
    memory_bytes: int = 512 * 1024 * 1024
    """Address space that a process may add to what it started with."""
    tenant_cache_bytes: int = 8 * 1024 * 1024
    """Outcomes kept for one tenant."""
    cache_bytes: int = 128 * 1024 * 1024
    """Outcomes kept for all tenants together."""
    max_waiting: int = 256
    """Sources that may wait for a process; tenants take turns."""
    max_waiting_tenant: int = 64
    """Sources of one tenant that may wait or be in work."""


class CompilePool:
    """`check` is the only question; `start` and `stop` bracket it."""

    def __init__(self, config: PoolConfig | None = None) -> None:
        self.config = config or PoolConfig()
        self.num_killed = 0
        """Processes that were late or died; each has been replaced."""
        self._cache = OutcomeCache(self.config.tenant_cache_bytes, self.config.cache_bytes)
        self._idle: Turns[Process] = Turns()
        self._processes: set[Process] = set()
        self._respawning: set[asyncio.Task[None]] = set()
        self._waiting: Counter[str] = Counter()
        self._is_open = False

    async def start(self) -> None:
        """Starts the processes; they are ready when this returns."""
        self._is_open = True
        await asyncio.gather(*(self._spawn() for _ in range(self.config.num_processes)))

    async def stop(self) -> None:
        """Kills whatever runs. Afterwards `check` raises Unavailable."""
        self._is_open = False
        for task in self._respawning:
            task.cancel()
        await asyncio.gather(*self._respawning, return_exceptions=True)
        await asyncio.gather(*(self._kill(process) for process in list(self._processes)))
        self._idle = Turns()

    async def check(self, source: SpecSource, tenant: str = "") -> ConstraintSpec:
        """The constraint for `source`; InvalidGrammar if there is none, Unavailable if the pool has no room."""
        data = encode(source)
        digest = hashlib.sha256(data).digest()
        outcome = self._cache.get(tenant, digest) or await self._in_turn(data, digest, tenant)
        if outcome.error:
            raise InvalidGrammar(outcome.error)
        return ConstraintSpec(outcome.grammar, outcome.needs_check)

    async def _in_turn(self, data: bytes, digest: bytes, tenant: str) -> Outcome:
        if not self._is_open:
            raise Unavailable("grammars cannot be compiled: the pool is not running")
        if self._waiting[tenant] >= self.config.max_waiting_tenant or self._waiting.total() >= self.config.max_waiting:
            raise Unavailable("too many grammars wait to be compiled; try again", retry_after_s=self.config.limit_s)
        self._waiting[tenant] += 1
        try:
            process = await self._idle.take(tenant)
            outcome = self._cache.get(tenant, digest)
            if outcome is not None:  # of several that came with the same source, one compiles it
                self._idle.give(process)
                return outcome
            outcome = await self._compile(process, data)
            self._cache.put(tenant, digest, outcome)
            return outcome
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]

    async def _compile(self, process: Process, data: bytes) -> Outcome:
        """Asks one process; whatever goes wrong, the process is given back or replaced."""
        is_sound = False
        try:
            outcome = await asyncio.wait_for(ask(process, data), self.config.limit_s)
            is_sound = True
        except TimeoutError:
            outcome = Outcome(error=f"The schema takes more than {self.config.limit_s:g} s to compile; simplify it.")
        except (asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError):
            outcome = Outcome(error="The schema needs too much memory to compile; simplify it.")
        finally:
            if is_sound:
                self._idle.give(process)
            else:
                self._replace(process)
        return outcome

    def _replace(self, process: Process) -> None:
        self.num_killed += 1
        task = asyncio.create_task(self._respawn(process))
        self._respawning.add(task)
        task.add_done_callback(self._respawning.discard)

    async def _respawn(self, process: Process) -> None:
        await self._kill(process)
        if self._is_open:
            await self._spawn()

    async def _spawn(self) -> None:
        arguments = ("-m", "quicksilver.constrain.compile.worker", str(self.config.memory_bytes))
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdin=PIPE, stdout=PIPE, env=bare_environment()
        )
        self._processes.add(process)
        await asyncio.wait_for(read_frame(process), START_LIMIT_S)
        self._idle.give(process)

    async def _kill(self, process: Process) -> None:
        self._processes.discard(process)
        if process.returncode is None:
            process.kill()
        await process.wait()
        # The transport closes its pipes only when told; otherwise the loop warns at its own end.
        process._transport.close()  # type: ignore[attr-defined]


def bare_environment() -> dict[str, str]:
    """Enough to import this package, and no secrets."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "RAYON_NUM_THREADS": "1"}


async def ask(process: Process, data: bytes) -> Outcome:
    assert process.stdin is not None
    process.stdin.write(HEADER.pack(len(data)) + data)
    await process.stdin.drain()
    return msgspec.json.decode(await read_frame(process), type=Outcome)


async def read_frame(process: Process) -> bytes:
    assert process.stdout is not None
    (length,) = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
    return await process.stdout.readexactly(length)
