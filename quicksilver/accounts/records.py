"""The nouns of this room: prices, limits, orders, reservations, charges. Immutable; no database here.

Money is counted in whole micro-credits (a millionth of a credit) and never in floats, so books add up exactly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from quicksilver.core import Usage
from quicksilver.errors import InvalidRequest

MICRO = 1_000_000
"""Micro-credits in a credit."""
MAX_TOKENS = 2**31
MAX_PRICE = 10**9
MAX_AMOUNT = 4 * 10**18
"""Sums stay below 2^63 with room to spare."""
_CREDITS = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))?")


def in_credits(amount: int) -> str:
    """Micro-credits as exact decimal credits."""
    whole, rest = divmod(abs(amount), MICRO)
    return f"{'-' if amount < 0 else ''}{whole}.{rest:06d}".rstrip("0").rstrip(".")


def from_credits(text: str, param: str) -> int:
    """Decimal credits, at most six places, as micro-credits."""
    found = _CREDITS.fullmatch(text)
    if found is None:
        raise InvalidRequest(f"{param} is an amount of credits such as '2500' or '0.25'", param=param)
    return int(found[1]) * MICRO + int((found[2] or "").ljust(6, "0"))


def period_start(period: str | None, now: float) -> int:
    """When the current budget period began, in UTC."""
    if period is None:
        return 0
    day = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return int((day.replace(day=1) if period == "month" else day).timestamp())


@dataclass(frozen=True, slots=True)
class Price:
    """Micro-credits per token. Cached input never costs more than fresh input."""

    input: int
    cached: int
    output: int

    def __post_init__(self) -> None:
        if not 0 <= self.cached <= self.input <= MAX_PRICE or not 0 <= self.output <= MAX_PRICE:
            raise InvalidRequest(f"a price needs 0 <= cached <= input and all of it <= {MAX_PRICE}", param="price")

    def cost(self, usage: Usage) -> int:
        fresh = usage.prompt_tokens - usage.cached_tokens
        return fresh * self.input + usage.cached_tokens * self.cached + usage.completion_tokens * self.output


@dataclass(frozen=True, slots=True)
class Limits:
    """Per-minute limits and the cap on requests in flight; None leaves that side open."""

    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    concurrency: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests", "input_tokens", "output_tokens", "concurrency"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MAX_TOKENS:
                raise InvalidRequest(f"{name} must lie between 0 and {MAX_TOKENS}", param=name)

    @property
    def is_rated(self) -> bool:
        """Whether any per-minute window has to be kept."""
        return (self.requests, self.input_tokens, self.output_tokens) != (None, None, None)


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A client's Idempotency-Key and the keyed digest of the request it came with."""

    key: str
    body_digest: str


@dataclass(frozen=True, slots=True)
class SavedReply:
    """What was answered, to be answered again word for word."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Order:
    """The most a request may use: its whole prompt, and every token it may be answered with, over all its answers."""

    request_id: str
    model: str
    max_input: int
    max_output: int
    idempotency: Idempotency | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.max_input <= MAX_TOKENS and 0 <= self.max_output <= MAX_TOKENS):
            raise InvalidRequest(f"a request may hold at most {MAX_TOKENS} tokens", param="max_tokens")


@dataclass(frozen=True, slots=True)
class Gauge:
    """One limit as headers show it. `limit` None: unlimited, and the other two are 0."""

    limit: int | None = None
    remaining: int = 0
    reset_s: float = 0.0
    """Seconds until the whole limit is free again."""


@dataclass(frozen=True, slots=True)
class LimitState:
    """The tightest of the key's, its project's and its organisation's limits, for x-ratelimit-* headers."""

    requests: Gauge = Gauge()
    input_tokens: Gauge = Gauge()
    output_tokens: Gauge = Gauge()


@dataclass(frozen=True, slots=True)
class Reservation:
    """Money set aside; exactly one of settle, release or the sweep closes it."""

    request_id: str
    amount: int
    limits: LimitState


class State(StrEnum):
    """Where a ledger row stands; the last two are final."""

    OPEN = "open"
    SETTLED = "settled"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Charge:
    """A closed ledger row. `cost` is in micro-credits."""

    request_id: str
    state: State
    cost: int
    usage: Usage
