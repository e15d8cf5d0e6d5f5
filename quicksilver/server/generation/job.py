"""ReplyJob: one reply being generated, with its reservation, its engine streams and the tokens delivered so far.

Errors before the first piece are raised by `start` and become an HTTP status; later ones belong inside the stream.
`aclose` returns the engine's slots and closes the reservation at any time; a second call does nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from quicksilver.accounts.charging import RequestOutcome, outcome_of
from quicksilver.accounts.identity import Identity
from quicksilver.accounts.records import LimitState, Order, SavedReply
from quicksilver.core import Usage
from quicksilver.errors import AuthenticationFailed, LedgerUnavailable, RateLimited
from quicksilver.server.generation.in_flight import InFlightQueue
from quicksilver.server.generation.plan import AnswerRequest, ReplyPlan
from quicksilver.server.services import Services
from quicksilver.text.answer import AnswerPiece, CollectedAnswer, Finished, TextDelta

if TYPE_CHECKING:
    from quicksilver.accounts.service import Accounts

    # Needs an optional extra.
    from quicksilver.server.generation.reply_trace import ReplyTrace

# A reply whose first piece takes longer starts without it, so that proxies see a live connection.
FIRST_PIECE_WAIT_S = 1.0
# Between two checks that the key of a running stream is still valid; also the longest time between checkpoints.
KEY_CHECK_S = 1.0
# A stream waits this many times the duration of its last checkpoint before the next one, so that checkpoints take at
# most a twentieth of the ledger's capacity.
CHECKPOINT_BACKOFF = 20
# A stream continues this long while the ledger cannot be written: the most that it can cost is reserved.
OUTAGE_S = 30.0
OUTAGE_POLL_S = 0.05

Numbered = tuple[int, AnswerPiece]
Item = TypeVar("Item")


class Billing:
    """The ledger's row of one request: reserved before the engine is called, closed once."""

    def __init__(self, accounts: Accounts, identity: Identity, order: Order, queue: InFlightQueue) -> None:
        self._accounts = accounts
        self._queue = queue
        self._identity = identity
        self._order = order
        self._is_open = False
        self._next_checkpoint = 0.0
        self._next_key_check = 0.0
        self._checkpoint: asyncio.Task[None] | None = None
        self._failing_since: float | None = None  # the first of the checkpoints that failed in a row
        self.limits = LimitState()

    @property
    def is_idempotent(self) -> bool:
        return self._order.idempotency is not None

    async def find_saved_reply(self) -> SavedReply | None:
        """The reply that an equal request with the same Idempotency-Key got before."""
        idempotency = self._order.idempotency
        return await self._accounts.recall(self._identity, idempotency) if idempotency else None

    async def reserve(self) -> None:
        try:
            reservation = await self._queue.admit(
                self._identity, lambda: self._accounts.reserve(self._identity, self._order)
            )
        except RateLimited:
            self.limits = await self._accounts.limits(self._identity)
            raise
        self._is_open = True
        self.limits = reservation.limits
        self._next_key_check = time.monotonic() + KEY_CHECK_S

    async def reserve_after(self, previous: Billing, usage: Usage | None) -> None:
        """Reserves the next row of a request and closes `previous`, which is charged for `usage` or is free. If this is
        refused, `previous` stays open."""
        reservation = await self._accounts.hand_over(previous._order.request_id, usage, self._identity, self._order)
        previous._is_open, self._is_open = False, True
        self.limits = reservation.limits
        self._next_key_check = time.monotonic() + KEY_CHECK_S

    @property
    def is_open(self) -> bool:
        """Whether an amount is reserved."""
        return self._is_open

    def checkpoint(self, delivered: Usage) -> None:
        """To be called after every chunk. Raises the error of an earlier key check, or of checkpoints that have failed
        for `OUTAGE_S`."""
        if self._checkpoint is not None and self._checkpoint.done():
            done, self._checkpoint = self._checkpoint, None
            self._read_checkpoint(done)
        if self._checkpoint is None and time.monotonic() >= self._next_checkpoint:
            self._checkpoint = asyncio.create_task(self._write_checkpoint(delivered))

    def _read_checkpoint(self, done: asyncio.Task[None]) -> None:
        try:
            done.result()
            self._failing_since = None
        except LedgerUnavailable:
            now = time.monotonic()
            self._failing_since = now if self._failing_since is None else self._failing_since
            if now - self._failing_since > OUTAGE_S:
                raise
            self._next_checkpoint = now + KEY_CHECK_S

    async def wait_until_writable(self) -> None:
        """Waits at most `OUTAGE_S` for a ledger that cannot be written. A failed settlement is final, so a stream that
        is complete waits for the end of an outage before it is settled."""
        try:
            async with asyncio.timeout(OUTAGE_S):
                while not self._accounts.is_writable and not self._accounts.needs_restart:
                    await asyncio.sleep(OUTAGE_POLL_S)
        except TimeoutError:
            pass

    async def _write_checkpoint(self, delivered: Usage) -> None:
        started = time.monotonic()
        await self._accounts.checkpoint(self._order.request_id, delivered.completion_tokens, delivered.cached_tokens)
        now = time.monotonic()
        self._next_checkpoint = now + min(KEY_CHECK_S, CHECKPOINT_BACKOFF * (now - started))
        if now >= self._next_key_check:
            self._next_key_check = now + KEY_CHECK_S
            if not await self._accounts.is_live(self._identity):
                raise AuthenticationFailed("this API key was revoked")

    async def settle(self, usage: Usage, reply: SavedReply | None) -> None:
        if self._is_open:
            await self._accounts.settle(self._order.request_id, usage, reply)
            self._is_open = False
            self._queue.end(self._identity)

    async def release(self, reply: SavedReply | None = None) -> None:
        """Closes the row without a charge. `reply` is kept for an equal request with the same Idempotency-Key."""
        await self._stop_checkpoints()
        if self._is_open:
            await self._accounts.release(self._order.request_id, reply)
            self._is_open = False
            self._queue.end(self._identity)

    async def _stop_checkpoints(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.cancel()
            await asyncio.gather(self._checkpoint, return_exceptions=True)

    def _outcome(self, error: BaseException | None) -> RequestOutcome:
        outcome = outcome_of(error)
        # No client waits for a line of a batch: one that was interrupted is generated again.
        is_restarted = self._order.is_half_price and outcome is RequestOutcome.INTERRUPTED
        return RequestOutcome.SERVER_FAILED if is_restarted else outcome

    async def close(self, error: BaseException | None, usage: Usage, delivered: int | None) -> None:
        """Closes a row that was not settled, as the charging rule decides."""
        await self._stop_checkpoints()
        if self._is_open:
            # A ledger that cannot be written now keeps the entry and closes the row later.
            with suppress(LedgerUnavailable):
                await self._accounts.close_request(self._order.request_id, self._outcome(error), usage, delivered)
                self._is_open = False
            self._queue.end(self._identity)


class ReplyJob:
    def __init__(
        self,
        plan: ReplyPlan,
        services: Services,
        billing: Billing | None = None,
        *,
        is_streamed: bool = False,
        trace: ReplyTrace | None = None,
    ) -> None:
        self.plan = plan
        self.billing = billing
        self.headers: Mapping[str, str] = {}
        # How each answer ended; complete after the last piece.
        self.finished = [Finished() for _ in plan.answers]
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
        # None for a reply that is sent as a whole.
        self._num_delivered = 0 if is_streamed else None
        self._error: BaseException | None = None

    async def start(self) -> None:
        """Raises what the ledger or the engine refuse at once: no credit, not ready, queue full."""
        try:
            if self.billing is not None:
                await self.billing.reserve()
            if self._trace is not None:
                self._trace.admitted()
            if self.plan.answers:
                await self._open_stream()
        except BaseException as error:
            self.fail(error)
            await self.aclose()
            raise

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
        """The next piece with the number of its answer; None after the last one."""
        if self._first is None or self._stream is None:
            return None
        try:
            numbered = await anext(self._stream) if self._has_pieces else await self._first
        except StopAsyncIteration:
            return None
        self._has_pieces = True
        return self._observe(numbered)

    async def collect(self) -> list[CollectedAnswer]:
        answers = [CollectedAnswer() for _ in self.plan.answers]
        while (numbered := await self.next_piece()) is not None:
            index, piece = numbered
            answers[index].add(piece)
        return answers

    def add_delivered(self, num_tokens: int) -> None:
        """Counts tokens that were sent. Raises when the ledger or the key no longer permit this stream."""
        self._num_delivered = (self._num_delivered or 0) + num_tokens
        if self.billing is not None:
            self.billing.checkpoint(self.usage_delivered(self._num_delivered))

    def usage_delivered(self, num_tokens: int) -> Usage:
        """The usage of a reply of which `num_tokens` tokens were sent."""
        return replace(self.usage(), completion_tokens=num_tokens)

    async def settle(self, reply: SavedReply | None = None) -> None:
        """Charges the whole reply; to be called once it is complete and before its last byte is sent."""
        if self.billing is not None:
            if self._num_delivered is not None:
                await self.billing.wait_until_writable()
            await self.billing.settle(self.usage(), reply)

    def fail(self, error: BaseException) -> None:
        """Records the error that ended the reply; the charging rule depends on it."""
        self._error = self._error or error

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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(error)
        await self.aclose()

    def _observe(self, numbered: Numbered) -> Numbered:
        index, piece = numbered
        seconds = time.perf_counter() - self._started
        if isinstance(piece, TextDelta):
            self._usages[index] = _usage_after(self._usages[index], piece)
            if not self._first_s:
                self._observe_first(piece, seconds)
            self._first_s.setdefault(index, seconds)
        elif isinstance(piece, Finished):
            self.finished[index] = piece
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


def _usage_after(usage: Usage, text: TextDelta) -> Usage:
    cached = usage.cached_tokens if text.cached_tokens is None else text.cached_tokens
    return replace(usage, cached_tokens=cached, completion_tokens=usage.completion_tokens + text.num_tokens)


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
