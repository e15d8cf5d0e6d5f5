"""EngineProbe: the engine's figures within a bounded time; those of its last heartbeat where it does not answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from quicksilver.core import EngineClient, EngineStats
from quicksilver.errors import QuicksilverError

# `/ready` and `/metrics` wait this long for the engine.
LIMIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Reading:
    stats: EngineStats
    # Seconds since the engine stated them.
    age_s: float
    # Whether the engine answered this time.
    is_fresh: bool


class EngineProbe:
    """At most one question is open, however many callers wait: a stopped worker must not collect them."""

    def __init__(self, engine: EngineClient, limit_s: float = LIMIT_S) -> None:
        self._engine = engine
        self._limit_s = limit_s
        self._question: asyncio.Task[EngineStats | None] | None = None

    async def read(self) -> Reading:
        if self._question is None or self._question.done():
            self._question = asyncio.create_task(self._ask())
        question = self._question
        await asyncio.wait({question}, timeout=self._limit_s)
        if question.done() and (stats := question.result()) is not None:
            return Reading(stats, 0.0, True)
        health = self._engine.health()
        return Reading(health.stats, health.silent_s, False)

    async def _ask(self) -> EngineStats | None:
        """None if the engine is dead or starting."""
        try:
            return await self._engine.stats()
        except QuicksilverError:
            return None
