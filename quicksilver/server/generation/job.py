"""Job: one reply in the making, from the reservation and the first word to the engine until its slots are back.

Owns the engine streams and the tab. `aclose` gives everything back whatever happened before, also when nothing did;
it may be called twice. Errors before the first piece reach the caller as a status, later ones belong inside the stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace

from quicksilver.accounts.charging import outcome_of
from quicksilver.accounts.records import SavedReply
from quicksilver.core import Usage
from quicksilver.server.generation.answer import Ask, Ended, Piece, Said, answer
from quicksilver.server.generation.billing import Tab, limit_headers
from quicksilver.server.generation.collect import Whole, merge
from quicksilver.server.generation.plan import Plan
from quicksilver.server.services import Services

MAX_KEPT_BYTES = 4 * 2**20
"""Of a stream kept for replay; a longer one is charged again when it is asked for again."""
PATIENCE_S = 1.0
"""A reply whose first piece takes longer than this starts without it, so that proxies see a living connection."""

Numbered = tuple[int, Piece]


class Recording:
    """The bytes of a stream, kept so that an equal request with the same Idempotency-Key gets them again."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._num_bytes = 0
        self.is_ending = False
        """From here on only the end follows: to be held back until all of it is in the books."""

    def add(self, chunk: bytes) -> None:
        self._num_bytes += len(chunk)
        if self._num_bytes <= MAX_KEPT_BYTES:
            self._chunks.append(chunk)

    def reply(self) -> SavedReply | None:
        """None where the stream was too long to be kept."""
        return SavedReply(200, b"".join(self._chunks)) if self._num_bytes <= MAX_KEPT_BYTES else None


class Job:
    def __init__(self, plan: Plan, services: Services, tab: Tab | None = None) -> None:
        self.plan = plan
        self.tab = tab
        self._services = services
        self._started = time.perf_counter()
        self._pieces: AsyncGenerator[Numbered, None] | None = None
        self._first: asyncio.Task[Numbered] | None = None
        self._usages = [_before(ask) for ask in plan.asks]
        self._num_delivered: int | None = None
        """Tokens a reader got piece by piece; None where nobody reads piece by piece."""
        self._has_spoken = False
        self._error: BaseException | None = None
        self.recording: Recording | None = None
        """Set before the first piece where the stream is kept for replay; whoever set it settles."""
        self.ended = [Ended() for _ in plan.asks]
        """How each answer ended; whole once `pieces` is."""

    @property
    def headers(self) -> dict[str, str]:
        return limit_headers(self.tab.limits) if self.tab else {}

    async def reserve(self) -> None:
        """Raises what the books refuse."""
        if self.tab is not None:
            await self.tab.open()

    async def start(self) -> None:
        """Raises what the books or the engine refuse at once: no credit, not ready, queue full."""
        try:
            await self.reserve()
            if self.plan.asks:
                await self._open_streams()
        except BaseException as error:
            self._error = error
            await self.aclose()
            raise

    async def _open_streams(self) -> None:
        engine, tokenizer = self._services.engine, self._services.tokenizer
        self._pieces = merge([answer(engine, tokenizer, ask) for ask in self.plan.asks])
        self._first = asyncio.create_task(_next(self._pieces))
        await asyncio.wait({self._first}, timeout=PATIENCE_S)
        if self._first.done():
            self._first.result()

    async def pieces(self) -> AsyncIterator[Numbered]:
        """Every piece, with the number of its answer. A plan without answers has none."""
        if self._first is None or self._pieces is None:
            return
        try:
            yield self._observe(await self._first)
            async for numbered in self._pieces:
                yield self._observe(numbered)
        except Exception as error:
            self._error = error
            raise

    async def delivered_pieces(self) -> AsyncIterator[Numbered]:
        """Pieces for a reader who gets them one by one: booked as they go, settled before the last one goes out."""
        num_left = len(self.plan.asks)
        self._num_delivered = 0
        async for index, piece in self.pieces():
            num_left -= isinstance(piece, Ended)
            if num_left == 0:
                await self._end_delivery()
            yield index, piece
            if isinstance(piece, Said):
                self._num_delivered += piece.num_tokens
                await self._mark()
        await self._end_delivery()

    async def gather(self) -> list[Whole]:
        """All answers as a whole; to be settled by the caller, with the reply that was made of them."""
        answers = [Whole() for _ in self.plan.asks]
        async for index, piece in self.pieces():
            answers[index].add(piece)
        return answers

    async def settle(self, reply: SavedReply | None = None) -> None:
        """Once; further calls do nothing."""
        if self.tab is not None:
            await self.tab.settle(self.usage(), reply)

    @property
    def has_failed(self) -> bool:
        """Whether an error ended the answers."""
        return self._error is not None

    async def _end_delivery(self) -> None:
        if self.recording is None:
            await self.settle()
        else:
            self.recording.is_ending = True

    def note(self, index: int, ended: Ended) -> None:
        """How an answer ended that was not made by a stream."""
        self._observe((index, ended))

    def usage(self) -> Usage:
        """Of all answers together, a prompt counted once."""
        prompts = self._usages[:: self.plan.num_answers]
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in prompts),
            cached_tokens=sum(usage.cached_tokens for usage in prompts),
            completion_tokens=sum(usage.completion_tokens for usage in self._usages),
        )

    async def aclose(self) -> None:
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        if self._pieces is not None:
            await self._pieces.aclose()
        if self.tab is not None:
            await self.tab.close(outcome_of(self._error), self.usage(), self._num_delivered)

    async def _mark(self) -> None:
        if self.tab is not None:
            await self.tab.mark(self._delivered_usage())

    def _delivered_usage(self) -> Usage:
        usage = self.usage()
        return usage if self._num_delivered is None else replace(usage, completion_tokens=self._num_delivered)

    def _observe(self, numbered: Numbered) -> Numbered:
        index, piece = numbered
        seconds = time.perf_counter() - self._started
        if isinstance(piece, Said):
            self._usages[index] = _after(self._usages[index], piece)
            if not self._has_spoken:
                self._has_spoken = True
                self._services.metrics.first_token(seconds)
        elif isinstance(piece, Ended):
            self.ended[index] = piece
            self._usages[index] = piece.usage
            self._services.metrics.finished(piece.finish, piece.usage, seconds)
        return numbered


def _before(ask: Ask) -> Usage:
    """As long as the engine has not said how much of the prompt was cached, all of it counts so: nobody overpays."""
    num_prompt = len(ask.request.prompt_ids)
    return Usage(prompt_tokens=num_prompt, cached_tokens=num_prompt)


def _after(usage: Usage, said: Said) -> Usage:
    cached = usage.cached_tokens if said.cached_tokens is None else said.cached_tokens
    return replace(usage, cached_tokens=cached, completion_tokens=usage.completion_tokens + said.num_tokens)


async def _next(pieces: AsyncGenerator[Numbered, None]) -> Numbered:
    return await anext(pieces)
