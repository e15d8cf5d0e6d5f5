"""Tab: what one request may cost, in the books while it runs and closed exactly once.

Reserve before the engine hears of it; note what was put on the wire; settle before the last byte. What fails is
released, what a caller cuts off is charged as far as it got. Without accounts all of this is nothing.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from quicksilver.accounts.charging import RequestOutcome
from quicksilver.accounts.identity import Identity
from quicksilver.accounts.records import Gauge, Idempotency, LimitState, Order, SavedReply
from quicksilver.core import Usage
from quicksilver.errors import AuthenticationFailed, LedgerUnavailable, RateLimited

if TYPE_CHECKING:
    from quicksilver.accounts.service import Accounts

BEAT_S = 1.0
"""Seconds between two looks at whether the key of a running stream still holds; also the most between checkpoints."""
CALM = 20
"""Rests of a stream between two checkpoints, in times that the last one took: each block while the books are quick, and
never more than a twentieth of what they can do when they are not."""


class Tab:
    def __init__(self, accounts: Accounts, identity: Identity, order: Order) -> None:
        self._accounts = accounts
        self._identity = identity
        self._order = order
        self._is_open = False
        self._next_beat = 0.0
        self._next_look = 0.0
        self._beat: asyncio.Task[None] | None = None
        self.limits = LimitState()

    @property
    def is_idempotent(self) -> bool:
        return self._order.idempotency is not None

    async def recall(self) -> SavedReply | None:
        """The reply that an equal request with the same Idempotency-Key got before."""
        idempotency: Idempotency | None = self._order.idempotency
        return await self._accounts.recall(self._identity, idempotency) if idempotency else None

    async def open(self) -> None:
        try:
            reservation = await self._accounts.reserve(self._identity, self._order)
        except RateLimited:
            self.limits = await self._accounts.limits(self._identity)
            raise
        self._is_open = True
        self.limits = reservation.limits
        self._next_look = time.monotonic() + BEAT_S

    async def mark(self, on_wire: Usage) -> None:
        """To be called after every chunk; raises when the books or the key no longer carry this stream."""
        if self._beat is not None and self._beat.done():
            beat, self._beat = self._beat, None
            beat.result()
        if self._beat is None and time.monotonic() >= self._next_beat:
            self._beat = asyncio.create_task(self._note(on_wire))

    async def _note(self, on_wire: Usage) -> None:
        started = time.monotonic()
        await self._accounts.checkpoint(self._order.request_id, on_wire.completion_tokens, on_wire.cached_tokens)
        now = time.monotonic()
        self._next_beat = now + min(BEAT_S, CALM * (now - started))
        if now >= self._next_look:
            self._next_look = now + BEAT_S
            if not await self._accounts.is_live(self._identity):
                raise AuthenticationFailed("this API key was revoked")

    async def settle(self, usage: Usage, reply: SavedReply | None = None) -> None:
        if self._is_open:
            await self._accounts.settle(self._order.request_id, usage, reply)
            self._is_open = False

    async def close(self, outcome: RequestOutcome, usage: Usage, delivered: int | None) -> None:
        """Closes what was not settled; the charging rule decides what it costs."""
        if self._beat is not None:
            self._beat.cancel()
            await asyncio.gather(self._beat, return_exceptions=True)
        if self._is_open:
            # A ledger that cannot be written now keeps the entry, and closes the request when it can.
            with suppress(LedgerUnavailable):
                await self._accounts.close_request(self._order.request_id, outcome, usage, delivered)
                self._is_open = False


def limit_headers(limits: LimitState) -> dict[str, str]:
    """OpenAI's names; `tokens` is the input side, and both sides have names of their own beside it."""
    gauges = {
        "requests": limits.requests,
        "tokens": limits.input_tokens,
        "input-tokens": limits.input_tokens,
        "output-tokens": limits.output_tokens,
    }
    return {key: value for name, gauge in gauges.items() for key, value in _gauge_headers(name, gauge).items()}


def _gauge_headers(name: str, gauge: Gauge) -> dict[str, str]:
    if gauge.limit is None:
        return {}
    return {
        f"x-ratelimit-limit-{name}": str(gauge.limit),
        f"x-ratelimit-remaining-{name}": str(gauge.remaining),
        f"x-ratelimit-reset-{name}": f"{gauge.reset_s:.3f}s",
    }
