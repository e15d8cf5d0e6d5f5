"""Job: one reply in the making, from the first word to the engine until its slots are back.

Owns the engine streams. `aclose` gives everything back whatever happened before, also when nothing did; it may be
called twice. Errors before the first piece reach the caller as a status, later ones belong inside the stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator

from quicksilver.server.answer import Ended, Piece, Said, answer
from quicksilver.server.collect import Whole, merge
from quicksilver.server.plan import Plan
from quicksilver.server.services import Services

PATIENCE_S = 1.0
"""A reply whose first piece takes longer than this starts without it, so that proxies see a living connection."""


class Job:
    def __init__(self, plan: Plan, services: Services) -> None:
        self.plan = plan
        self._services = services
        self._started = time.perf_counter()
        self._pieces: AsyncGenerator[tuple[int, Piece], None] | None = None
        self._first: asyncio.Task[tuple[int, Piece]] | None = None
        self._has_spoken = False

    async def start(self) -> None:
        """Raises what the engine refuses at once: not ready, queue full."""
        engine, tokenizer = self._services.engine, self._services.tokenizer
        self._pieces = merge([answer(engine, tokenizer, ask) for ask in self.plan.asks])
        self._first = asyncio.create_task(_next(self._pieces))
        try:
            await asyncio.wait({self._first}, timeout=PATIENCE_S)
            if self._first.done():
                self._first.result()
        except BaseException:
            await self.aclose()
            raise

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """Every piece, with the number of its answer."""
        assert self._first is not None, "start() comes first"
        assert self._pieces is not None
        yield self._observe(await self._first)
        async for numbered in self._pieces:
            yield self._observe(numbered)

    async def gather(self) -> list[Whole]:
        answers = [Whole() for _ in self.plan.asks]
        async for index, piece in self.pieces():
            answers[index].add(piece)
        return answers

    async def aclose(self) -> None:
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        if self._pieces is not None:
            await self._pieces.aclose()

    def _observe(self, numbered: tuple[int, Piece]) -> tuple[int, Piece]:
        piece, seconds = numbered[1], time.perf_counter() - self._started
        if isinstance(piece, Said) and not self._has_spoken:
            self._has_spoken = True
            self._services.metrics.first_token(seconds)
        elif isinstance(piece, Ended):
            self._services.metrics.finished(piece.finish, piece.usage, seconds)
        return numbered


async def _next(pieces: AsyncGenerator[tuple[int, Piece], None]) -> tuple[int, Piece]:
    return await anext(pieces)
