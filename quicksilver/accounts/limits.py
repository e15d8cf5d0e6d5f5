"""Per-minute limits as sliding windows of one-second buckets, stored in the database only.

The amount admitted in any 60 consecutive seconds never exceeds the limit. A window changes only while the row of its
account is locked, so the limit also holds across several processes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import Connection, bindparam, delete, or_, select

from quicksilver.accounts.records import Gauge, Limits, LimitState
from quicksilver.accounts.schema import rate_buckets
from quicksilver.accounts.store import replacing

WINDOW_S = 60
# Requests, input tokens, output tokens.
Amounts = tuple[int, int, int]
NAMES = ("requests", "input_tokens", "output_tokens")


_BUCKETS = select(rate_buckets).where(
    rate_buckets.c.account_id.in_(bindparam("ids", expanding=True)),
    rate_buckets.c.second.between(bindparam("first"), bindparam("last")),
)


class Window:
    """The last minute of one account in one-second buckets, as one transaction reads and changes it."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._buckets: dict[int, Amounts] = {}
        self.touched: set[int] = set()

    def put(self, second: int, amounts: Amounts) -> None:
        self._buckets[second] = amounts

    def used(self, which: int) -> int:
        return sum(bucket[which] for bucket in self._buckets.values())

    def take(self, amounts: Amounts) -> None:
        self._change(int(self._now), amounts)

    def give_back(self, second: int, amounts: Amounts) -> None:
        """Returns unused amounts to the bucket of `second`; without effect once that second has left the window."""
        if second in self._buckets:
            self._change(second, (-amounts[0], -amounts[1], -amounts[2]))

    def wait_s(self, which: int, room: int) -> float:
        """Seconds until usage is at most `room`, if no further request arrives."""
        over, wait_s = self.used(which) - room, 0.0
        for second in sorted(self._buckets):
            if over > 0:
                over -= self._buckets[second][which]
                wait_s = self._expires_in(second)
        return wait_s

    def gauge(self, which: int, limit: int) -> Gauge:
        busy = [second for second, bucket in self._buckets.items() if bucket[which]]
        reset_s = self._expires_in(max(busy)) if busy else 0.0
        return Gauge(limit, max(0, limit - self.used(which)), reset_s)

    def bucket(self, second: int) -> Amounts:
        return self._buckets[second]

    def _change(self, second: int, amounts: Amounts) -> None:
        have = self._buckets.get(second, (0, 0, 0))
        self._buckets[second] = (have[0] + amounts[0], have[1] + amounts[1], have[2] + amounts[2])
        self.touched.add(second)

    def _expires_in(self, second: int) -> float:
        # A bucket may lie in the future by the clock skew of two machines. The wait is never longer than the window.
        return min(float(WINDOW_S), second + WINDOW_S - self._now)


def caps_of(limits: Limits) -> tuple[int | None, int | None, int | None]:
    return limits.requests, limits.input_tokens, limits.output_tokens


def load_windows(connection: Connection, account_ids: Collection[str], now: float) -> dict[str, Window]:
    """Windows of the accounts. Buckets more than a window ahead come from a clock that jumped and are ignored."""
    windows = {account_id: Window(now) for account_id in account_ids}
    if windows:
        span = {"first": int(now) - WINDOW_S + 1, "last": int(now) + WINDOW_S}
        for row in connection.execute(_BUCKETS, {"ids": list(windows), **span}):
            windows[row.account_id].put(row.second, (row.requests, row.input_tokens, row.output_tokens))
    return windows


def save_windows(connection: Connection, windows: Iterable[tuple[str, Window]]) -> None:
    rows = [
        dict(zip(("account_id", "second", *NAMES), (account_id, second, *window.bucket(second)), strict=True))
        for account_id, window in windows
        for second in sorted(window.touched)
    ]
    if rows:
        connection.execute(replacing(connection.dialect.name, rate_buckets, ("account_id", "second"), NAMES), rows)


def forget_old_windows(connection: Connection, now: float) -> None:
    """Deletes buckets outside the window, including those that a clock jump left in the future."""
    second = rate_buckets.c.second
    connection.execute(delete(rate_buckets).where(or_(second < int(now) - WINDOW_S, second > int(now) + WINDOW_S)))


def tightest(views: Iterable[tuple[Limits, Window]]) -> LimitState:
    """For each limit the account with the least remaining."""
    gauges: list[Gauge] = [Gauge(), Gauge(), Gauge()]
    for limits, window in views:
        for which, cap in enumerate(caps_of(limits)):
            if cap is not None:
                gauge = window.gauge(which, cap)
                known = gauges[which]
                gauges[which] = gauge if known.limit is None else min(known, gauge, key=lambda one: one.remaining)
    return LimitState(*gauges)
