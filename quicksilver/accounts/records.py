"""Immutable records: prices, limits, orders, reservations, charges; accounts, users, keys and usage as lists show them.

Amounts are whole micro-credits (a millionth of a credit), never floats, so sums are exact. This module does not import
the database library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from quicksilver.accounts.identity import Scope
from quicksilver.accounts.keys import display_of
from quicksilver.core import Usage
from quicksilver.errors import InvalidRequest

# Micro-credits in a credit.
MICRO = 1_000_000
MAX_TOKENS = 2**31
MAX_PRICE = 10**9
# Sums of amounts stay below 2^63.
MAX_AMOUNT = 4 * 10**18
HOUR_S = 3600
WIDTHS = {"1h": HOUR_S, "1d": 24 * HOUR_S}
GROUPS = ("key", "model", "project", "user")
MAX_BUCKETS = 31 * 24
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
    """Start of the current budget period, in UTC."""
    if period is None:
        return 0
    day = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return int((day.replace(day=1) if period == "month" else day).timestamp())


def next_period_start(period: str | None, now: float) -> int:
    """Start of the next budget period, in UTC."""
    length_s = 32 * 86_400 if period == "month" else 86_400
    return period_start(period, period_start(period, now) + length_s)


@dataclass(frozen=True, slots=True)
class Price:
    """Micro-credits per token. Cached input never costs more than other input."""

    input: int
    cached: int
    output: int

    def __post_init__(self) -> None:
        if not 0 <= self.cached <= self.input <= MAX_PRICE or not 0 <= self.output <= MAX_PRICE:
            raise InvalidRequest(f"a price needs 0 <= cached <= input and all of it <= {MAX_PRICE}", param="price")

    @property
    def half(self) -> Price:
        """Half of it, rounded up to whole micro-credits."""
        return Price(-(-self.input // 2), -(-self.cached // 2), -(-self.output // 2))

    def cost(self, usage: Usage) -> int:
        uncached = usage.prompt_tokens - usage.cached_tokens
        return uncached * self.input + usage.cached_tokens * self.cached + usage.completion_tokens * self.output


@dataclass(frozen=True, slots=True)
class Limits:
    """Per-minute limits and the number of requests in flight; None means unlimited."""

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
        """Whether there is any per-minute limit."""
        return (self.requests, self.input_tokens, self.output_tokens) != (None, None, None)


@dataclass(frozen=True, slots=True)
class Idempotency:
    """An Idempotency-Key and the keyed digest of its request."""

    key: str
    body_digest: str


@dataclass(frozen=True, slots=True)
class SavedReply:
    """A reply that is sent again, byte for byte, when the request is repeated."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Order:
    """The most that a request may use: its prompt, and the longest output of all its answers together."""

    request_id: str
    model: str
    max_input: int
    max_output: int
    idempotency: Idempotency | None = None
    # A line of a batch.
    is_half_price: bool = False
    # Instead of the price of the model.
    price: Price | None = None
    # Whether the tokens count against the limits per minute. Those of training do not.
    is_rated: bool = True

    def __post_init__(self) -> None:
        if not (0 <= self.max_input <= MAX_TOKENS and 0 <= self.max_output <= MAX_TOKENS):
            raise InvalidRequest(f"a request may hold at most {MAX_TOKENS} tokens", param="max_tokens")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """Something that a project stored: a response, an item of a conversation, a file, a batch."""

    kind: str
    id: str
    body: bytes
    # The id of the object that contains this one, such as the conversation of an item.
    parent: str = ""
    created_at: int = 0
    # Work on it is not finished. One process at a time holds the lease.
    is_open: bool = False
    leased_by: str = ""
    # Seconds since the epoch.
    leased_until: int = 0


@dataclass(frozen=True, slots=True)
class StoredReply:
    """The objects that a reply leaves. They are stored in the transaction that charges it, so neither exists alone."""

    owner: str
    objects: tuple[StoredObject, ...]
    # If not empty: they are stored only while this process holds the lease on the first one.
    leased_by: str = ""


@dataclass(frozen=True, slots=True)
class Gauge:
    """One limit as headers show it. If `limit` is None it is unlimited, and the other fields are 0."""

    limit: int | None = None
    remaining: int = 0
    # Seconds until the whole limit is available again.
    reset_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LimitState:
    """The tightest of the key's, its project's and its organisation's limits, for x-ratelimit-* headers."""

    requests: Gauge = Gauge()
    input_tokens: Gauge = Gauge()
    output_tokens: Gauge = Gauge()


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reserved amount. Exactly one of settle, release and recovery closes it."""

    request_id: str
    amount: int
    limits: LimitState


class State(StrEnum):
    """State of a ledger row; SETTLED and RELEASED are final."""

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


@dataclass(frozen=True, slots=True)
class AccountRecord:
    """An organisation, project or key as lists show it. Amounts in micro-credits."""

    id: str
    kind: str
    path: str
    name: str
    created_at: int
    disabled_at: int | None
    # Credits of an organisation, budget of a project or key; None: no bound.
    allowance: int | None
    spent: int
    reserved: int
    in_flight: int
    limits: Limits
    period: str | None
    period_at: int
    spent_before: int
    # Of a project: whether its prompts may be sent to upstreams of hybrid routing.
    may_leave: bool = False

    @property
    def is_disabled(self) -> bool:
        return self.disabled_at is not None

    @property
    def balance(self) -> int | None:
        """Amount left in the period of the last request; None: no bound."""
        return None if self.allowance is None else self.allowance - (self.spent - self.spent_before)

    def balance_at(self, now: float) -> int | None:
        """Amount left at `now`. The whole allowance is left if a new period began after the last request."""
        has_rolled = self.period is not None and period_start(self.period, now) > self.period_at
        return self.allowance if has_rolled else self.balance


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A person in an organisation, who may own keys."""

    id: str
    org_id: str
    email: str
    created_at: int
    is_disabled: bool


@dataclass(frozen=True, slots=True)
class KeyDraft:
    """A key to create. `project_id` is used for admins only; other callers create keys below their own key."""

    name: str
    project_id: str = ""
    scopes: frozenset[Scope] = frozenset({Scope.INFERENCE, Scope.USAGE})
    models: frozenset[str] | None = None
    expires_at: int | None = None
    budget: int | None = None
    limits: Limits | None = None
    user_id: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= (self.budget or 0) <= MAX_AMOUNT or not 0 <= (self.expires_at or 0) <= MAX_AMOUNT:
            raise InvalidRequest("budget and expiry are whole numbers, not below 0", param="budget")


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key as lists show it, without its secret. `displays` has one prefix for each valid secret."""

    account: AccountRecord
    scopes: frozenset[Scope]
    models: frozenset[str] | None
    expires_at: int | None
    user: UserRecord | None
    displays: tuple[str, ...]
    # Start of the hour of the last charge.
    last_used_at: int | None = None


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key with its secret, which is not stored and cannot be shown again."""

    id: str
    secret: str

    def __repr__(self) -> str:
        return f"NewKey(id={self.id!r}, secret={display_of(self.secret)!r})"


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """A time range (unix seconds, end not included), its bucket width, grouping and filters."""

    start: int
    end: int
    width: str = "1d"
    group_by: tuple[str, ...] = ()
    # Filters; an empty one matches everything.
    models: tuple[str, ...] = ()
    key_ids: tuple[str, ...] = ()
    project_ids: tuple[str, ...] = ()
    user_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.width not in WIDTHS:
            raise InvalidRequest(f"bucket width is one of {', '.join(WIDTHS)}", param="bucket_width")
        if not set(self.group_by) <= set(GROUPS):
            raise InvalidRequest(f"usage is grouped by {', '.join(GROUPS)}", param="group_by")
        if not 0 <= self.start < self.end <= 2**40 or self.end - self.start > MAX_BUCKETS * self.width_s:
            raise InvalidRequest(f"start must lie before end, at most {MAX_BUCKETS} buckets apart", param="start_time")

    @property
    def width_s(self) -> int:
        return WIDTHS[self.width]


@dataclass(frozen=True, slots=True)
class UsageLine:
    """Sums over one group of one bucket. Fields that are not grouped by are None. `cost` is in micro-credits."""

    key_id: str | None = None
    model: str | None = None
    project_id: str | None = None
    user_id: str | None = None
    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0


@dataclass(frozen=True, slots=True)
class UsageBucket:
    """One time slice. Slices without usage are included."""

    start: int
    end: int
    lines: tuple[UsageLine, ...] = field(default=())
