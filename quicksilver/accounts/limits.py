"""Per-minute limits as sliding windows of whole seconds, kept in the database and nowhere else.

Of any sixty consecutive seconds of the clock, never more than the limit is admitted. Whoever changes a window holds
the lock on its purse, so two processes count as one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import Connection, bindparam, delete, or_, select

from quicksilver.accounts.records import Gauge, Limits, LimitState
from quicksilver.accounts.schema import rate_buckets
from quicksilver.accounts.store import replacing

WINDOW_S = 60
Amounts = tuple[int, int, int]
"""Requests, input tokens, output tokens."""
NAMES = ("requests", "input_tokens", "output_tokens")


_BUCKETS = select(rate_buckets).where(
    rate_buckets.c.purse_id.in_(bindparam("purses", expanding=True)),
    rate_buckets.c.second.between(bindparam("first"), bindparam("last")),
)


class Window:
    """The last minute of one purse, second by second, as this transaction sees and changes it."""

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
        """Return what was taken in `second` and not used; nothing happens once that second has left the window."""
        if second in self._buckets:
            self._change(second, (-amounts[0], -amounts[1], -amounts[2]))

    def wait_s(self, which: int, room: int) -> float:
        """Seconds until no more than `room` is used, if nobody else comes."""
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
        # A bucket may lie ahead of us by the skew between two machines; nobody is told to wait over a minute for it.
        return min(float(WINDOW_S), second + WINDOW_S - self._now)


def caps_of(limits: Limits) -> tuple[int | None, int | None, int | None]:
    return limits.requests, limits.input_tokens, limits.output_tokens


def load_windows(connection: Connection, purse_ids: Collection[str], now: float) -> dict[str, Window]:
    """Windows of the purses. Buckets further ahead than a window are relics of a clock that jumped, and are ignored."""
    windows = {purse_id: Window(now) for purse_id in purse_ids}
    if windows:
        span = {"first": int(now) - WINDOW_S + 1, "last": int(now) + WINDOW_S}
        for row in connection.execute(_BUCKETS, {"purses": list(windows), **span}):
            windows[row.purse_id].put(row.second, (row.requests, row.input_tokens, row.output_tokens))
    return windows


def save_windows(connection: Connection, windows: Iterable[tuple[str, Window]]) -> None:
    rows = [
        dict(zip(("purse_id", "second", *NAMES), (purse_id, second, *window.bucket(second)), strict=True))
        for purse_id, window in windows
        for second in sorted(window.touched)
    ]
    if rows:
        connection.execute(replacing(connection.dialect.name, rate_buckets, ("purse_id", "second"), NAMES), rows)


def forget_old_windows(connection: Connection, now: float) -> None:
    second = rate_buckets.c.second
    connection.execute(delete(rate_buckets).where(or_(second < int(now) - WINDOW_S, second > int(now) + WINDOW_S)))


def tightest(views: Iterable[tuple[Limits, Window]]) -> LimitState:
    """What is left of each limit at the purse where least is left."""
    gauges: list[Gauge] = [Gauge(), Gauge(), Gauge()]
    for limits, window in views:
        for which, cap in enumerate(caps_of(limits)):
            if cap is not None:
                gauge = window.gauge(which, cap)
                known = gauges[which]
                gauges[which] = gauge if known.limit is None else min(known, gauge, key=lambda one: one.remaining)
    return LimitState(*gauges)
