"""Breaker: stops requests to another server that fails, and lets single ones through until it answers again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from quicksilver.core import setting


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    max_failures: int = setting(5, "Failures within `window_s` after which a server gets no more requests.")
    window_s: float = setting(30.0, "Seconds after which a failure no longer counts.")
    open_s: float = setting(5.0, "Seconds until one request is tried again; doubled each time that it fails.")
    max_open_s: float = setting(60.0, "Longest time between two tries.")


class BreakerState(StrEnum):
    """`HALF_OPEN`: one request is being tried."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """`allows` before a request, `begin` when it is sent, then `succeed`, `fail` or `cancel` once."""

    def __init__(self, config: BreakerConfig | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config or BreakerConfig()
        self._clock = clock
        self._failures: deque[float] = deque(maxlen=self._config.max_failures)
        self._pause_s = 0.0
        self._opened_at = 0.0
        self._has_trial = False

    @property
    def state(self) -> BreakerState:
        if not self._pause_s:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if self._has_trial else BreakerState.OPEN

    def allows(self) -> bool:
        """Whether a request may be sent now."""
        if not self._pause_s:
            return True
        return not self._has_trial and self._clock() - self._opened_at >= self._pause_s

    def begin(self) -> None:
        self._has_trial = bool(self._pause_s)

    def succeed(self) -> None:
        self._failures.clear()
        self._pause_s, self._has_trial = 0.0, False

    def cancel(self) -> None:
        """The request ended without a sign of failure or success, for example because its client left."""
        self._has_trial = False

    def fail(self, asked_pause_s: float = 0.0) -> None:
        """`asked_pause_s`: the server asked for no requests for so long, so the breaker opens at once."""
        now, config = self._clock(), self._config
        if asked_pause_s:
            rest_s = self._opened_at + self._pause_s - now if self._pause_s else 0.0
            self._open(max(asked_pause_s, rest_s), now)
        elif self._has_trial:
            self._open(min(max(2 * self._pause_s, config.open_s), config.max_open_s), now)
        elif not self._pause_s:  # else the request was sent before the breaker opened
            self._failures.append(now)
            is_full = len(self._failures) == config.max_failures
            if is_full and now - self._failures[0] < config.window_s:
                self._open(config.open_s, now)

    def _open(self, pause_s: float, now: float) -> None:
        self._pause_s, self._opened_at, self._has_trial = pause_s, now, False
        self._failures.clear()
