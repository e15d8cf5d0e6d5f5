"""Compiles grammars in separate processes, with limits on processor time and memory and a cache for each tenant.

A thread cannot be stopped, so the API process never compiles a grammar itself. Only an outcome that the source itself
caused is cached. A process that was killed or stopped is replaced, and its source is compiled once more.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from logging import getLogger

from quicksilver.constrain.compile.outcome_cache import OutcomeCache
from quicksilver.constrain.compile.process import CompileProcess
from quicksilver.constrain.compile.process_pool import PoolRefusal, ProcessPool
from quicksilver.constrain.compile.worker import Outcome
from quicksilver.constrain.source import GrammarSource, encode
from quicksilver.core import ConstraintSpec, setting
from quicksilver.errors import CompilerUnavailable, InvalidGrammar

logger = getLogger(__name__)


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


class CompilePool(ProcessPool[CompileProcess]):
    """A fixed number of compile processes, shared fairly between tenants."""

    def __init__(self, config: PoolConfig | None = None) -> None:
        self.config = config = config or PoolConfig()
        processes = [
            CompileProcess(config.limit_s, config.memory_bytes, config.stall_s) for _ in range(config.num_processes)
        ]
        super().__init__(
            processes, config.deadline_s, config.heartbeat_s, config.max_waiting, config.max_waiting_tenant
        )
        self._cache = OutcomeCache(config.tenant_cache_bytes, config.cache_bytes)

    def _refusal(self, reason: PoolRefusal, detail: str = "") -> CompilerUnavailable:
        if reason is PoolRefusal.CLOSED:
            return CompilerUnavailable(f"grammars cannot be compiled: {detail or 'the pool is not running'}")
        if reason is PoolRefusal.FULL:
            return CompilerUnavailable("too many grammars wait to be compiled; try again", retry_after_s=2.0)
        return CompilerUnavailable("no process compiled the grammar in time; try again", retry_after_s=2.0)

    async def compile(self, source: GrammarSource, tenant: str = "") -> ConstraintSpec:
        """The constraint for `source`. Raises InvalidGrammar if the source is refused, CompilerUnavailable if the queue
        is full or no process answered before the deadline."""
        data = encode(source)
        digest = hashlib.sha256(data).digest()
        outcome = self._cache.get(tenant, digest) or await self._compile(data, digest, tenant)
        if outcome.error:
            raise InvalidGrammar(outcome.error)
        return ConstraintSpec(outcome.grammar, outcome.needs_validation)

    async def _compile(self, data: bytes, digest: bytes, tenant: str) -> Outcome:
        async with self._turn(tenant) as process:
            # Another request may have compiled the same source while this one waited.
            outcome = self._cache.get(tenant, digest)
            if outcome is None:
                outcome = await self._retry(process, lambda: process.compile(data))
                self._cache.put(tenant, digest, outcome)
            return outcome
