"""Compiles grammars in separate processes, with limits on processor time and memory and a cache for each tenant.

A thread cannot be stopped, so the API process never compiles a grammar itself. Only an outcome that the source itself
caused is cached. A process that was killed or stopped is replaced, and its source is compiled once more.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from logging import getLogger
from typing import Any

from quicksilver.constrain.compile.fair_queue import FairQueue
from quicksilver.constrain.compile.outcome_cache import OutcomeCache
from quicksilver.constrain.compile.process import CompileProcess, ProcessLost
from quicksilver.constrain.compile.worker import Outcome
from quicksilver.constrain.source import GrammarSource, encode
from quicksilver.core import ConstraintSpec, setting
from quicksilver.errors import CompilerUnavailable, InvalidGrammar

logger = getLogger(__name__)

# Failed starts before `CompilePool.start` gives up. Later restarts are unlimited.
START_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Limits of the pool."""

    num_processes: int = setting(2, "Grammars that are compiled at the same time.")
    limit_s: float = setting(2.0, "Processor seconds for one grammar.")
    deadline_s: float = setting(15.0, "Seconds for one `compile`, including the wait for a process and one retry.")
    stall_s: float = setting(1.5, "Seconds without processor time after which a busy process counts as stopped.")
    heartbeat_s: float = setting(1.0, "Seconds between two heartbeats to idle processes.")
    memory_bytes: int = setting(512 * 1024 * 1024, "Address space that a process may add to that of its imports.")
    tenant_cache_bytes: int = setting(8 * 1024 * 1024, "Cached outcomes of one tenant.")
    cache_bytes: int = setting(128 * 1024 * 1024, "Cached outcomes of all tenants together.")
    max_waiting: int = setting(256, "Grammars of all tenants that wait or are compiled.")
    max_waiting_tenant: int = setting(64, "Grammars of one tenant that wait or are compiled.")


class CompilePool:
    """A fixed number of compile processes, shared fairly between tenants."""

    def __init__(self, config: PoolConfig | None = None) -> None:
        self.config = config or PoolConfig()
        # Processes that were killed because they exceeded a limit, stalled or died.
        self.num_replaced = 0
        self._cache = OutcomeCache(self.config.tenant_cache_bytes, self.config.cache_bytes)
        self._idle: FairQueue[CompileProcess] = FairQueue()
        self._processes: list[CompileProcess] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: Counter[str] = Counter()
        self._is_open = False

    @property
    def is_ready(self) -> bool:
        """Whether at least one process answered its last request or heartbeat."""
        return self._is_open and self.num_ready > 0

    @property
    def num_ready(self) -> int:
        return sum(process.is_ready for process in self._processes)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    async def start(self) -> None:
        """Returns when all processes are ready; raises CompilerUnavailable if they cannot be started."""
        config = self.config
        self._processes = [
            CompileProcess(config.limit_s, config.memory_bytes, config.stall_s) for _ in range(config.num_processes)
        ]
        try:
            await asyncio.gather(*(process.restart(START_ATTEMPTS) for process in self._processes))
        except (ProcessLost, OSError) as error:
            await self.stop()
            raise CompilerUnavailable(f"grammars cannot be compiled: {error}") from error
        self._is_open = True
        for process in self._processes:
            self._idle.give(process)
        self._run(self._watch())

    async def stop(self) -> None:
        """Kills all processes. Afterwards `compile` raises CompilerUnavailable."""
        self._is_open = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(process.kill() for process in self._processes))
        self._idle = FairQueue()

    async def compile(self, source: GrammarSource, tenant: str = "") -> ConstraintSpec:
        """The constraint for `source`. Raises InvalidGrammar if the source is refused, CompilerUnavailable if the queue
        is full or no process answered before the deadline."""
        data = encode(source)
        digest = hashlib.sha256(data).digest()
        outcome = self._cache.get(tenant, digest) or await self._enqueue(data, digest, tenant)
        if outcome.error:
            raise InvalidGrammar(outcome.error)
        return ConstraintSpec(outcome.grammar, outcome.needs_validation)

    async def _enqueue(self, data: bytes, digest: bytes, tenant: str) -> Outcome:
        if not self._is_open:
            raise CompilerUnavailable("grammars cannot be compiled: the pool is not running")
        if self._waiting[tenant] >= self.config.max_waiting_tenant or self._waiting.total() >= self.config.max_waiting:
            raise CompilerUnavailable("too many grammars wait to be compiled; try again", retry_after_s=2.0)
        self._waiting[tenant] += 1
        try:
            async with asyncio.timeout(self.config.deadline_s):
                return await self._lookup_or_compile(data, digest, tenant)
        except (TimeoutError, ProcessLost) as error:
            raise CompilerUnavailable(
                "no process compiled the grammar in time; try again", retry_after_s=2.0
            ) from error
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]

    async def _lookup_or_compile(self, data: bytes, digest: bytes, tenant: str) -> Outcome:
        process = await self._idle.take(tenant)
        try:
            # Another request may have compiled the same source while this one waited.
            outcome = self._cache.get(tenant, digest)
            if outcome is None:
                outcome = await self._compile(process, data)
                self._cache.put(tenant, digest, outcome)
            return outcome
        finally:
            self._give_back(process)

    async def _compile(self, process: CompileProcess, data: bytes) -> Outcome:
        """Compiles in `process`; once more in a fresh one if the first was killed or stopped."""
        try:
            return await process.compile(data)
        except ProcessLost:
            self.num_replaced += 1
            await process.restart()
            return await process.compile(data)

    def _give_back(self, process: CompileProcess) -> None:
        """Makes an idle process available; restarts one that owes a reply or is dead."""
        if process.is_idle:
            self._idle.give(process)
        elif self._is_open:
            self.num_replaced += 1
            self._run(self._restart(process))

    async def _restart(self, process: CompileProcess) -> None:
        await process.restart()
        self._idle.give(process)

    async def _watch(self) -> None:
        """Sends heartbeats to idle processes and replaces those that do not answer."""
        while True:
            await asyncio.sleep(self.config.heartbeat_s)
            await asyncio.gather(*(self._heartbeat(process) for process in self._idle.take_free()))

    async def _heartbeat(self, process: CompileProcess) -> None:
        try:
            await process.answers()
        except Exception:  # one process must not end the heartbeats of all
            logger.exception("heartbeat of a compile process failed")
        finally:
            self._give_back(process)

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
