"""Billing: the ledger's row of one request, from its reservation to its charge."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from quicksilver.accounts.charging import RequestOutcome, outcome_of
from quicksilver.accounts.identity import Identity
from quicksilver.accounts.records import LimitState, Order, SavedReply, StoredReply
from quicksilver.core import Usage
from quicksilver.errors import AuthenticationFailed, LedgerUnavailable, RateLimited
from quicksilver.server.generation.in_flight import InFlightQueue

if TYPE_CHECKING:
    from quicksilver.accounts.service import Accounts

# Seconds between two checks that the key of a running stream is valid; also the longest time between checkpoints.
KEY_CHECK_S = 1.0
# A stream waits this many times the duration of its last checkpoint before the next one, so that checkpoints take at
# most a twentieth of the ledger's capacity.
CHECKPOINT_BACKOFF = 20
# A stream continues this long while the ledger cannot be written: the most that it can cost is reserved.
OUTAGE_S = 30.0
OUTAGE_POLL_S = 0.05


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

    async def settle(self, usage: Usage, reply: SavedReply | None, stored: StoredReply | None = None) -> None:
        if self._is_open:
            await self._accounts.settle(self._order.request_id, usage, reply, stored)
            self._is_open = False
            self._queue.end(self._identity)

    async def release(self, reply: SavedReply | None = None, stored: StoredReply | None = None) -> None:
        """Closes the row without a charge. `reply` is kept for an equal request with the same Idempotency-Key."""
        await self._stop_checkpoints()
        if self._is_open:
            await self._accounts.release(self._order.request_id, reply, stored)
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
