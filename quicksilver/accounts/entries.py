"""Ledger entries (reserve, checkpoint, close) and one ledger row in memory. No database access.

A row leaves the state OPEN exactly once; a second close finds it closed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from quicksilver.accounts.identity import Identity
from quicksilver.accounts.records import Charge, Order, Price, SavedReply, State, StoredReply
from quicksilver.core import Usage


@dataclass(frozen=True, slots=True)
class Reserve:
    """Reserve the highest cost of a request."""

    identity: Identity
    order: Order

    @property
    def request_id(self) -> str:
        return self.order.request_id


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Number of answer tokens that have been sent. `cached_tokens` is None until it is known."""

    request_id: str
    tokens_on_wire: int
    cached_tokens: int | None = None


class How(Enum):
    """How a row is closed. ORPHAN: its process is gone, so the last checkpoint decides the charge."""

    SETTLE = "settle"
    RELEASE = "release"
    ORPHAN = "orphan"


@dataclass(frozen=True, slots=True)
class Close:
    """Give a row its final state. `usage` applies to SETTLE, `reply` and `stored` to SETTLE and RELEASE, `checkpoint`
    to ORPHAN."""

    request_id: str
    how: How
    usage: Usage = field(default_factory=Usage)
    reply: SavedReply | None = None
    stored: StoredReply | None = None
    # A checkpoint that could not be written before.
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class HandOver:
    """Close one row and reserve the next one of the same request. The request keeps its place in flight and its
    Idempotency-Key. If the reservation is refused, the first row stays open."""

    close: Close
    reserve: Reserve

    @property
    def request_id(self) -> str:
        """The id of the row that is closed."""
        return self.close.request_id


Entry = Reserve | Checkpoint | Close | HandOver


@dataclass(slots=True)
class LedgerRow:
    """One request in the ledger. The fields are the columns of the table, which has integers (0 or 1) for booleans."""

    request_id: str
    path: str
    key_id: str
    model: str
    owner: str
    created_at: int
    max_input: int
    max_output: int
    price: Price
    reserved: int
    is_rated: int  # the request counts towards per-minute limits
    has_claim: int  # the request holds its Idempotency-Key: its reply is saved for that key
    state: str = State.OPEN
    closed_at: int | None = None
    closed_by: str | None = None
    wire_tokens: int | None = None  # answer tokens sent, by the last checkpoint
    wire_cached: int | None = None  # cached input tokens, by the last checkpoint
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0

    @classmethod
    def of(cls, row: Any) -> LedgerRow:
        price = Price(row.input_price, row.cached_price, row.output_price)
        return cls(price=price, **{name: getattr(row, name) for name in (*_FIXED, *CHANGING)})

    @property
    def is_open(self) -> bool:
        return self.state == State.OPEN

    def as_inserted(self) -> dict[str, Any]:
        prices = {
            "input_price": self.price.input,
            "cached_price": self.price.cached,
            "output_price": self.price.output,
        }
        return {**{name: getattr(self, name) for name in _FIXED}, **prices, **self.as_changed()}

    def as_changed(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in CHANGING}

    def advance(self, checkpoint: Checkpoint) -> None:
        """Raises the number of sent tokens; it never falls."""
        self.wire_tokens = max(self.wire_tokens or 0, checkpoint.tokens_on_wire)
        if checkpoint.cached_tokens is not None:
            self.wire_cached = checkpoint.cached_tokens

    def wire_usage(self) -> Usage:
        """Usage of the last checkpoint. While the cached share of the input is unknown, all of it counts as cached."""
        cached = self.max_input if self.wire_cached is None else self.wire_cached
        return self.bounded(Usage(self.max_input, cached, self.wire_tokens or 0))

    def bounded(self, usage: Usage) -> Usage:
        """Usage limited to the reservation, so that a charge never exceeds it."""
        prompt = min(max(usage.prompt_tokens, 0), self.max_input)
        cached = min(max(usage.cached_tokens, 0), prompt)
        return Usage(prompt, cached, min(max(usage.completion_tokens, 0), self.max_output))

    def close(self, state: State, closed_by: str, now: float) -> None:
        self.state, self.closed_by, self.closed_at = state, closed_by, int(now)

    def charge(self) -> Charge:
        usage = Usage(self.input_tokens, self.cached_tokens, self.output_tokens)
        return Charge(self.request_id, State(self.state), self.cost, usage)


_FIXED = (
    "request_id", "path", "key_id", "model", "owner", "created_at", "max_input", "max_output",
    "reserved", "is_rated", "has_claim",
)  # fmt: skip
CHANGING = (
    "state", "closed_at", "closed_by", "wire_tokens", "wire_cached", "input_tokens", "cached_tokens",
    "output_tokens", "cost",
)  # fmt: skip
