"""Decides whether an account can admit a request: money, concurrency, rates. Organisations, projects and keys follow
the same rule.

`Budget` has no database access; `load_budgets` and `save_budgets` read and write it while the rows are locked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from quicksilver.accounts.limits import NAMES, Amounts, Window, caps_of, load_windows, save_windows
from quicksilver.accounts.records import Limits, in_credits, next_period_start, period_start
from quicksilver.accounts.schema import accounts
from quicksilver.errors import (
    AuthenticationFailed,
    InsufficientQuota,
    InvalidRequest,
    QuicksilverError,
    RateLimited,
    TooManyInFlight,
)

_READ = select(accounts).where(accounts.c.id.in_(bindparam("ids", expanding=True))).order_by(accounts.c.id)
_LOCK = _READ.with_for_update()
_COLUMNS = ("spent", "reserved", "in_flight", "period_at", "spent_before")
_SAVE = (
    update(accounts).where(accounts.c.id == bindparam("account")).values({name: bindparam(name) for name in _COLUMNS})
)
_KINDS = {"org": "organisation", "project": "project", "key": "key"}


@dataclass(frozen=True, slots=True)
class Demand:
    """The most that one request takes from each account of its path."""

    amount: int
    input_tokens: int
    output_tokens: int

    @property
    def amounts(self) -> Amounts:
        return 1, self.input_tokens, self.output_tokens


@dataclass(slots=True)
class Budget:
    """Money, requests in flight and rate window of one account."""

    id: str
    kind: str
    is_disabled: bool
    # Credits of an organisation, budget of a project or key; None: no bound of its own.
    allowance: int | None
    spent: int
    reserved: int
    in_flight: int
    period: str | None
    period_at: int
    # Amount spent before the current period began.
    spent_before: int
    limits: Limits
    window: Window
    is_changed: bool = False

    @property
    def left(self) -> int | None:
        """Amount that may still be spent, without open reservations."""
        return None if self.allowance is None else self.allowance - (self.spent - self.spent_before)

    def roll_period(self, now: float) -> None:
        """Starts a new period once the clock has reached it.

        A start that is more than one period ahead comes from a clock that jumped and was set back; it is corrected, or
        the budget would not be renewed until then. One period ahead may be clock skew between processes and stays.
        """
        start = period_start(self.period, now)
        if self.period is not None and start > self.period_at:
            self.period_at, self.spent_before, self.is_changed = start, self.spent, True
        elif self.period_at > next_period_start(self.period, now):
            self.period_at, self.is_changed = start, True

    def refusal(self, demand: Demand) -> QuicksilverError | None:
        """Why this account cannot admit the request, or None."""
        if self.is_disabled:
            return AuthenticationFailed("this key has been revoked")
        return self._money_refusal(demand.amount) or self._size_refusal(demand) or self._rate_refusal(demand)

    def take(self, demand: Demand) -> None:
        self.reserved += demand.amount
        self.in_flight += 1
        self.is_changed = True
        if self.limits.is_rated:
            self.window.take(demand.amounts)

    def close(self, reserved: int, cost: int) -> None:
        self.reserved -= reserved
        self.spent += cost
        self.in_flight -= 1
        self.is_changed = True

    def _money_refusal(self, amount: int) -> QuicksilverError | None:
        if self.left is None or self.left - self.reserved >= amount:
            return None
        if self.left < amount:
            what, remedy = ("balance", "add credits") if self.kind == "org" else ("budget", "raise it")
            if self.left <= 0:
                return InsufficientQuota(f"the {_KINDS[self.kind]}'s {what} is spent; {remedy}")
            return InsufficientQuota(
                f"this request may cost {in_credits(amount)} credits and the {_KINDS[self.kind]}'s {what} has "
                f"{in_credits(self.left)} left; set max_tokens lower or {remedy}"
            )
        return RateLimited(f"requests in flight hold what the {_KINDS[self.kind]} has left; try again when they end")

    def _size_refusal(self, demand: Demand) -> QuicksilverError | None:
        for which, cap in enumerate(caps_of(self.limits)):
            if cap is not None and demand.amounts[which] > cap:
                message = (
                    f"one request needs {demand.amounts[which]} of {cap} {NAMES[which].replace('_', ' ')} a minute"
                )
                return InvalidRequest(f"{message}; make it smaller", param="max_tokens")
        return None

    def _rate_refusal(self, demand: Demand) -> QuicksilverError | None:
        if self.limits.concurrency is not None and self.in_flight >= self.limits.concurrency:
            message = f"{self.limits.concurrency} requests are in flight, which is the limit; let one end"
            return TooManyInFlight(message)
        waits = [
            (self.window.wait_s(which, cap - demand.amounts[which]), which)
            for which, cap in enumerate(caps_of(self.limits))
            if cap is not None
        ]
        wait_s, which = max(waits, default=(0.0, 0))
        if wait_s <= 0:
            return None
        message = f"limit of {caps_of(self.limits)[which]} {NAMES[which].replace('_', ' ')} a minute reached"
        return RateLimited(f"{message} by this {_KINDS[self.kind]}", retry_after_s=wait_s)


def refusal_of(path: Iterable[Budget], demand: Demand) -> QuicksilverError | None:
    """The refusal with the longest wait; one that no wait resolves comes first."""
    found = [refusal for budget in path if (refusal := budget.refusal(demand)) is not None]
    return max(found, key=_wait_s, default=None)


def _wait_s(error: QuicksilverError) -> float:
    return error.retry_after_s if isinstance(error, RateLimited) else float("inf")


def limits_of(row: Any) -> Limits:
    return Limits(row.max_requests, row.max_input, row.max_output, row.max_in_flight)


def load_budgets(
    connection: Connection, account_ids: Collection[str], now: float, is_locked: bool = True
) -> dict[str, Budget]:
    """Reads accounts with their rate windows, and locks them in the order of their ids unless they are only read."""
    if not account_ids:
        return {}
    rows = connection.execute(_LOCK if is_locked else _READ, {"ids": sorted(account_ids)}).all()
    windows = load_windows(connection, [row.id for row in rows if limits_of(row).is_rated], now)
    loaded = {row.id: _budget_of(row, windows.get(row.id) or Window(now)) for row in rows}
    for account in loaded.values():
        account.roll_period(now)
    return loaded


def save_budgets(connection: Connection, changed: Iterable[Budget]) -> None:
    kept = [account for account in changed if account.is_changed]
    if kept:
        connection.execute(
            _SAVE, [{"account": account.id, **{c: getattr(account, c) for c in _COLUMNS}} for account in kept]
        )
    save_windows(connection, ((account.id, account.window) for account in kept))


def _budget_of(row: Any, window: Window) -> Budget:
    return Budget(
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
