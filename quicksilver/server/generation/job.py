"""ReplyJob: one reply being generated, with its reservation, its engine streams and the tokens delivered so far.

Errors before the first piece are raised by `start` and become an HTTP status; later ones belong inside the stream.
`aclose` returns the engine's slots and closes the reservation at any time; a second call does nothing.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from quicksilver.accounts.records import SavedReply, StoredReply
from quicksilver.core import Usage
from quicksilver.errors import Unavailable
from quicksilver.server.generation.billing import Billing
from quicksilver.server.generation.plan import AnswerRequest, ReplyPlan
from quicksilver.server.services import Services
from quicksilver.text.answer import AnswerPiece, CollectedAnswer, Finished, TextDelta

if TYPE_CHECKING:
    # Needs an optional extra.
    from quicksilver.server.generation.reply_trace import ReplyTrace

# A reply whose first piece takes longer starts without it, so that proxies see a live connection.
FIRST_PIECE_WAIT_S = 1.0

Numbered = tuple[int, AnswerPiece]
Item = TypeVar("Item")


class Job(ABC):
    """A reply that is being generated: a ReplyJob, or one that chooses between several."""

    def __init__(self, billing: Billing | None, *, is_streamed: bool) -> None:
        self.billing = billing
        # Tokens that were sent; None for a reply that is sent as a whole.
        self._num_delivered = 0 if is_streamed else None
        self._error: BaseException | None = None

    @property
    @abstractmethod
    def plan(self) -> ReplyPlan:
        """Fixed once `start` has returned."""

    @property
    @abstractmethod
    def finished(self) -> Sequence[Finished]:
        """How each answer ended; complete after the last piece."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the reply, besides those of the rate limits."""
        return {}

    async def start(self) -> None:
        """Raises what the ledger or the engine refuse at once: no credit, not ready, queue full."""
        try:
            await self._begin()
        except BaseException as error:
            self.fail(error)
            await self.aclose()
            raise

    @abstractmethod
    async def _begin(self) -> None: ...

    @abstractmethod
    async def next_piece(self) -> Numbered | None:
        """The next piece with the number of its answer; None after the last one."""

    async def collect(self) -> list[CollectedAnswer]:
        answers = [CollectedAnswer() for _ in self.plan.answers]
        while (numbered := await self.next_piece()) is not None:
            index, piece = numbered
            answers[index].add(piece)
        return answers

    @abstractmethod
    def add_delivered(self, num_tokens: int) -> None:
        """Counts tokens that were sent. Raises when the ledger or the key no longer permit this stream."""

    @abstractmethod
    async def settle(self, reply: SavedReply | None = None, stored: StoredReply | None = None) -> None:
        """Charges the whole reply and stores what it leaves; to be called once it is complete and before its last byte
        is sent."""

    def fail(self, error: BaseException) -> None:
        """Records the error that ended the reply; the charging rule depends on it."""
        self._error = self._error or error

    @abstractmethod
    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(error)
        await self.aclose()


class ReplyJob(Job):
    def __init__(
        self,
        plan: ReplyPlan,
        services: Services,
        billing: Billing | None = None,
        *,
        is_streamed: bool = False,
        trace: ReplyTrace | None = None,
    ) -> None:
        super().__init__(billing, is_streamed=is_streamed)
        self._plan = plan
        self._finished = [Finished() for _ in plan.answers]
        self._services = services
        self._started = time.perf_counter()
        self._stream: AsyncGenerator[Numbered, None] | None = None
        self._first: asyncio.Task[Numbered] | None = None
        self._has_pieces = False
        self._usages = [_initial_usage(answer) for answer in plan.answers]
        # Seconds to the first text of each answer that has some.
        self._first_s: dict[int, float] = {}
        self._num_finished = 0
        self._trace = trace

    @property
    def plan(self) -> ReplyPlan:
        return self._plan

    @property
    def finished(self) -> Sequence[Finished]:
        return self._finished

    async def _begin(self) -> None:
        if self.billing is not None:
            await self.billing.reserve()
        if self._trace is not None:
            self._trace.admitted()
        if self.plan.answers:
            await self._open_stream()

    async def _open_stream(self) -> None:
        engine, tokenizer = self._services.engine, self._services.tokenizer
        self._stream = merge_streams([answer.pieces(engine, tokenizer) for answer in self.plan.answers])
        self._first = asyncio.create_task(_next(self._stream))
        await asyncio.wait({self._first}, timeout=FIRST_PIECE_WAIT_S)
        if self._first.done():
            self._first.result()

    async def wait_for_first(self) -> None:
        """Waits for the first piece, however long it takes. Raises what ended the reply before it."""
        if self._first is not None:
            await asyncio.wait({self._first})
            self._first.result()

    async def next_piece(self) -> Numbered | None:
        if self._first is None or self._stream is None:
            return None
        try:
            if self._num_delivered is None:
                numbered = await self._receive(self._stream, self._first)
            else:
                numbered = await self._receive_until_late(self._stream, self._first)
        except StopAsyncIteration:
            return None
        self._has_pieces = True
        return self._observe(numbered)

    async def _receive(self, stream: AsyncGenerator[Numbered, None], first: asyncio.Task[Numbered]) -> Numbered:
        return await anext(stream) if self._has_pieces else await first

    async def _receive_until_late(
        self, stream: AsyncGenerator[Numbered, None], first: asyncio.Task[Numbered]
    ) -> Numbered:
        """As `_receive`; raises Unavailable when the time of a drain is over."""
        open_requests, task = self._services.open_requests, asyncio.current_task()
        assert task is not None
        open_requests.waiting.add(task)
        try:
            return await self._receive(stream, first)
        except asyncio.CancelledError:
            if task in open_requests.interrupted and task.uncancel() == 0:
                raise Unavailable("This server is shutting down.", code="draining") from None
            raise
        finally:
            open_requests.waiting.discard(task)

    def add_delivered(self, num_tokens: int) -> None:
        self._num_delivered = (self._num_delivered or 0) + num_tokens
        if self.billing is not None:
            self.billing.checkpoint(self.usage_delivered(self._num_delivered))

    def usage_delivered(self, num_tokens: int) -> Usage:
        """The usage of a reply of which `num_tokens` tokens were sent."""
        return replace(self.usage(), completion_tokens=num_tokens)

    async def settle(self, reply: SavedReply | None = None, stored: StoredReply | None = None) -> None:
        if self.billing is not None:
            if self._num_delivered is not None:
                await self.billing.wait_until_writable()
            await self.billing.settle(self.usage(), reply, stored)
        if stored is not None:
            await self._services.storage.keep(stored, is_written=self.billing is not None)

    def usage(self) -> Usage:
        """Of all answers together; a prompt counts once."""
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
        if self._stream is not None:
            await self._stream.aclose()
        if self.billing is not None:
            await self.billing.close(self._error, self.usage(), self._num_delivered)
        if self._trace is not None:
            is_complete = self._error is None and self._num_finished == len(self.finished)
            self._trace.end(self.finished, is_complete=is_complete, error=self._error)

    def _observe(self, numbered: Numbered) -> Numbered:
        index, piece = numbered
        seconds = time.perf_counter() - self._started
        if isinstance(piece, TextDelta):
            self._usages[index] = piece.add_to(self._usages[index])
            if not self._first_s:
                self._observe_first(piece, seconds)
            self._first_s.setdefault(index, seconds)
        elif isinstance(piece, Finished):
            self._finished[index] = piece
            self._usages[index] = piece.usage
            self._num_finished += 1
            decode_s = seconds - self._first_s.get(index, seconds)
            self._services.metrics.finished(self._services.metrics_id, piece.reason, piece.usage, seconds, decode_s)
        return numbered

    def _observe_first(self, piece: TextDelta, seconds: float) -> None:
        self._services.metrics.first_token(self._services.metrics_id, seconds)
        if self._trace is not None:
            self._trace.first_token(piece.queued_s)


def _initial_usage(answer: AnswerRequest) -> Usage:
    """Until the engine reports the cached share of the prompt, all of it counts as cached: nothing is overcharged."""
    num_prompt = answer.num_prompt_tokens
    return Usage(prompt_tokens=num_prompt, cached_tokens=num_prompt)


async def _next(pieces: AsyncGenerator[Numbered, None]) -> Numbered:
    return await anext(pieces)


async def merge_streams(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[tuple[int, Item], None]:
    """Items in the order of arrival, each with the number of its stream. At most one item per stream is queued."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, Item] | Exception | None] = asyncio.Queue(maxsize=1)
    tasks = [asyncio.create_task(_feed(i, stream, queue)) for i, stream in enumerate(streams)]
    try:
        num_left = len(streams)
        while num_left:
            entry = await queue.get()
            if isinstance(entry, Exception):
                raise entry
            if entry is None:
                num_left -= 1
            else:
                yield entry
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _feed(
    index: int, stream: AsyncGenerator[Item, None], queue: asyncio.Queue[tuple[int, Item] | Exception | None]
) -> None:
    try:
        async with aclosing(stream):
            async for item in stream:
                await queue.put((index, item))
        await queue.put(None)
    except Exception as error:
        await queue.put(error)
