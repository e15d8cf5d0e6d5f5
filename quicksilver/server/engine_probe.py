"""EngineProbe: the engine's figures within a bounded time, and the last known ones where the engine does not answer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from quicksilver.core import EngineClient, EngineStats
from quicksilver.errors import QuicksilverError

# `/ready` and `/metrics` wait this long for the engine.
LIMIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Reading:
    stats: EngineStats
    # Seconds since the engine stated them; None if it never did.
    age_s: float | None
    # Whether the engine answered this time.
    is_fresh: bool


class EngineProbe:
    """At most one question is open, however many callers wait: a stopped worker must not collect them."""

    def __init__(self, engine: EngineClient, limit_s: float = LIMIT_S) -> None:
        self._engine = engine
        self._limit_s = limit_s
        self._question: asyncio.Task[None] | None = None
        self._stats = EngineStats()
        self._answered_at: float | None = None

    async def read(self) -> Reading:
        if self._question is None or self._question.done():
            self._question = asyncio.create_task(self._ask())
        asked_at = time.monotonic()
        await asyncio.wait({self._question}, timeout=self._limit_s)
        answered_at = self._answered_at
        if answered_at is None:
            return Reading(self._stats, None, False)
        return Reading(self._stats, time.monotonic() - answered_at, answered_at >= asked_at)

    async def _ask(self) -> None:
        try:
            self._stats = await self._engine.stats()
            self._answered_at = time.monotonic()
        except QuicksilverError:
            pass  # a dead engine answers nothing; the last figures stay
