"""UpstreamBreaker: stops calls to an upstream that fails, and lets one call through to find out whether it is back."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

# A longer Retry-After of an upstream is shortened to this.
MAX_RETRY_AFTER_S = 300.0


class UpstreamBreaker:
    """Counts the failures of one process. Closed: calls pass. Open: none passes. After `open_s`, one call is tried; its
    result closes or opens the breaker."""

    def __init__(
        self, max_failures: int, window_s: float, open_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_failures = max_failures
        self._window_s = window_s
        self._open_s = open_s
        self._clock = clock
        self._failures: deque[float] = deque()
        self._open_until: float | None = None
        self._is_trying = False

    @property
    def is_open(self) -> bool:
        """Whether the next call is refused."""
        if self._open_until is None:
            return False
        return self._is_trying or self._clock() < self._open_until

    def begin(self) -> bool:
        """Whether a call may be made. After True, exactly one of `succeed`, `fail` and `abandon` must follow."""
        if self.is_open:
            return False
        self._is_trying = self._open_until is not None
        return True

    def succeed(self) -> None:
        self._failures.clear()
        self._open_until, self._is_trying = None, False

    def fail(self, retry_after_s: float | None = None) -> None:
        """`retry_after_s`: the upstream asked for no calls for so long, so the breaker opens. 0 asks nothing."""
        now, was_trying, self._is_trying = self._clock(), self._is_trying, False
        self._failures.append(now)
        while self._failures and self._failures[0] <= now - self._window_s:
            self._failures.popleft()
        if retry_after_s:
            self._open_until = max(self._open_until or now, now + min(retry_after_s, MAX_RETRY_AFTER_S))
        elif was_trying or len(self._failures) >= self._max_failures:
            self._open_until = now + self._open_s

    def abandon(self) -> None:
        """The call ended without a result, for example because the client disconnected."""
        self._is_trying = False
