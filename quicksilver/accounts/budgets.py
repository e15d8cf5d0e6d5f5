"""A purse decides whether it can bear a request: money, concurrency, rates. One rule for organisation, project, key.

`Purse` is pure; the two functions at the end read and write it. A purse is only changed while its row is locked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from quicksilver.accounts.limits import NAMES, Amounts, Window, caps_of, load_windows, save_windows
from quicksilver.accounts.records import Limits, period_start
from quicksilver.accounts.schema import purses
from quicksilver.errors import AuthenticationFailed, InsufficientQuota, InvalidRequest, QuicksilverError, RateLimited

_LOCK = select(purses).where(purses.c.id.in_(bindparam("ids", expanding=True))).order_by(purses.c.id).with_for_update()
_KEPT = ("spent", "reserved", "in_flight", "period_at", "spent_before")
_SAVE = update(purses).where(purses.c.id == bindparam("purse")).values({name: bindparam(name) for name in _KEPT})
_WORDS = {"org": "organisation", "project": "project", "key": "key"}


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request would take from each purse of its path."""

    amount: int
    input_tokens: int
    output_tokens: int

    @property
    def amounts(self) -> Amounts:
        return 1, self.input_tokens, self.output_tokens


@dataclass(slots=True)
class Purse:
    """One row of `purses` in hand, with its window."""

    id: str
    kind: str
    is_disabled: bool
    allowance: int | None
    """Credits of an organisation, budget of a project or key; None: no bound of its own."""
    spent: int
    reserved: int
    in_flight: int
    period: str | None
    period_at: int
    spent_before: int
    """What had been spent when the budget's period began."""
    limits: Limits
    window: Window
    is_changed: bool = False

    @property
    def left(self) -> int | None:
        """What may still be spent, reservations in flight not counted."""
        return None if self.allowance is None else self.allowance - (self.spent - self.spent_before)

    def roll_period(self, now: float) -> None:
        start = period_start(self.period, now)
        if self.period is not None and start > self.period_at:
            self.period_at, self.spent_before, self.is_changed = start, self.spent, True

    def refusal(self, ask: Ask) -> QuicksilverError | None:
        """Why this purse cannot bear the request, or None."""
        if self.is_disabled:
            return AuthenticationFailed("this key has been revoked")
        return self._money_refusal(ask.amount) or self._size_refusal(ask) or self._rate_refusal(ask)

    def take(self, ask: Ask) -> None:
        self.reserved += ask.amount
        self.in_flight += 1
        self.is_changed = True
        if self.limits.is_rated:
            self.window.take(ask.amounts)

    def close(self, reserved: int, cost: int) -> None:
        self.reserved -= reserved
        self.spent += cost
        self.in_flight -= 1
        self.is_changed = True

    def _money_refusal(self, amount: int) -> QuicksilverError | None:
        if self.left is None or self.left - self.reserved >= amount:
            return None
        if self.left < amount:
            what = "credits are" if self.kind == "org" else "budget is"
            return InsufficientQuota(f"the {_WORDS[self.kind]}'s {what} spent; add to it or ask for fewer tokens")
        return RateLimited(f"requests in flight hold what the {_WORDS[self.kind]} has left; try again when they end")

    def _size_refusal(self, ask: Ask) -> QuicksilverError | None:
        for which, cap in enumerate(caps_of(self.limits)):
            if cap is not None and ask.amounts[which] > cap:
                said = f"one request needs {ask.amounts[which]} of {cap} {NAMES[which].replace('_', ' ')} a minute"
                return InvalidRequest(f"{said}; make it smaller", param="max_tokens")
        return None

    def _rate_refusal(self, ask: Ask) -> QuicksilverError | None:
        if self.limits.concurrency is not None and self.in_flight >= self.limits.concurrency:
            return RateLimited(f"{self.limits.concurrency} requests are in flight, which is the limit; let one end")
        waits = [
            (self.window.wait_s(which, cap - ask.amounts[which]), which)
            for which, cap in enumerate(caps_of(self.limits))
            if cap is not None
        ]
        wait_s, which = max(waits, default=(0.0, 0))
        if wait_s <= 0:
            return None
        said = f"limit of {caps_of(self.limits)[which]} {NAMES[which].replace('_', ' ')} a minute reached"
        return RateLimited(f"{said} by this {_WORDS[self.kind]}", retry_after_s=wait_s)


def refusal_of(path: Iterable[Purse], ask: Ask) -> QuicksilverError | None:
    """The refusal that stands longest: a final one before a passing one, and of these the longest wait."""
    found = [said for purse in path if (said := purse.refusal(ask)) is not None]
    return max(found, key=_standing, default=None)


def _standing(error: QuicksilverError) -> float:
    return error.retry_after_s if isinstance(error, RateLimited) else float("inf")


def limits_of(row: Any) -> Limits:
    return Limits(row.max_requests, row.max_input, row.max_output, row.max_in_flight)


def load_purses(connection: Connection, purse_ids: Collection[str], now: float) -> dict[str, Purse]:
    """Lock the purses, always in the order of their ids, and read them with their windows."""
    if not purse_ids:
        return {}
    rows = connection.execute(_LOCK, {"ids": sorted(purse_ids)}).all()
    windows = load_windows(connection, [row.id for row in rows if limits_of(row).is_rated], now)
    loaded = {row.id: _purse(row, windows.get(row.id) or Window(now)) for row in rows}
    for purse in loaded.values():
        purse.roll_period(now)
    return loaded


def save_purses(connection: Connection, changed: Iterable[Purse]) -> None:
    kept = [purse for purse in changed if purse.is_changed]
    if kept:
        connection.execute(_SAVE, [{"purse": purse.id, **{c: getattr(purse, c) for c in _KEPT}} for purse in kept])
    save_windows(connection, ((purse.id, purse.window) for purse in kept))


def _purse(row: Any, window: Window) -> Purse:
    return Purse(
        id=row.id,
        kind=row.kind,
        is_disabled=row.disabled_at is not None,
        allowance=row.allowance,
        spent=row.spent,
        reserved=row.reserved,
        in_flight=row.in_flight,
        period=row.period,
        period_at=row.period_at,
        spent_before=row.spent_before,
        limits=limits_of(row),
        window=window,
    )
