"""What lists show and what makers ask for: purses, users, keys, usage. Immutable; no database here.

Kept apart from the code that reads and writes it, so that a server can speak of accounts without loading a database
library it may not need.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quicksilver.accounts.identity import Scope
from quicksilver.accounts.keys import display_of
from quicksilver.accounts.records import MAX_AMOUNT, Limits, period_start
from quicksilver.errors import InvalidRequest

HOUR_S = 3600
WIDTHS = {"1h": HOUR_S, "1d": 24 * HOUR_S}
GROUPS = ("key", "model", "project", "user")
MAX_BUCKETS = 31 * 24


@dataclass(frozen=True, slots=True)
class PurseRecord:
    """An organisation, project or key as lists show it. Amounts in micro-credits."""

    id: str
    kind: str
    path: str
    name: str
    created_at: int
    disabled_at: int | None
    allowance: int | None
    """Credits of an organisation, budget of a project or key; None: no bound."""
    spent: int
    reserved: int
    in_flight: int
    limits: Limits
    period: str | None
    period_at: int
    spent_before: int

    @property
    def is_disabled(self) -> bool:
        return self.disabled_at is not None

    @property
    def balance(self) -> int | None:
        """What is left in the period that was current at the last request; None: no bound."""
        return None if self.allowance is None else self.allowance - (self.spent - self.spent_before)

    def balance_at(self, now: float) -> int | None:
        """What is left now: a period that ended without a request gives its budget back too."""
        has_rolled = self.period is not None and period_start(self.period, now) > self.period_at
        return self.allowance if has_rolled else self.balance


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A person of an organisation; keys may be theirs."""

    id: str
    org_id: str
    email: str
    created_at: int
    is_disabled: bool


@dataclass(frozen=True, slots=True)
class KeyDraft:
    """A key to be made. `project_id` is read from admins only; other makers make keys below themselves."""

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
    """A key as lists show it: never its secret. `displays` has one entry per secret that still opens it."""

    purse: PurseRecord
    scopes: frozenset[Scope]
    models: frozenset[str] | None
    expires_at: int | None
    user: UserRecord | None
    displays: tuple[str, ...]
    last_used_at: int | None = None
    """The hour of its last charge."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key with its secret, which exists nowhere else and is never shown again."""

    id: str
    secret: str

    def __repr__(self) -> str:
        return f"NewKey(id={self.id!r}, secret={display_of(self.secret)!r})"


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """A span of time (unix seconds, end not included) cut into buckets, each grouped as asked."""

    start: int
    end: int
    width: str = "1d"
    group_by: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    """Only these models, and so on; empty: all."""
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
    """Sums over one group of one bucket; what was not grouped by is None. `cost` in micro-credits."""

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
    """One slice of time; empty ones are there too."""

    start: int
    end: int
    lines: tuple[UsageLine, ...] = field(default=())
