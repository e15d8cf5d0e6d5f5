"""FeedbackLog: reports of accepted, rejected and ignored suggestions, one JSON object per line.

Reports need no API key, so the file size and the rate are bounded. A full file is renamed and replaces the previous old
file, so the newest reports are kept. A report above the rate limit is dropped, but the sender gets a normal reply.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import orjson

from quicksilver.server.endpoints.feedback.wire import FeedbackBody

log = logging.getLogger("quicksilver.server")

MAX_FILE_BYTES = 32 * 2**20
# Token bucket of one address: capacity in reports, and refill rate in reports per minute.
BURST = 1000
PER_MINUTE = 300
MAX_SENDERS = 4096


class SenderLimits:
    """A token bucket for each of the latest senders. Safe to share between threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # Tokens left and when they were counted, least recently seen first.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, sender: str) -> bool:
        with self._lock:
            now = self._clock()
            left, counted_at = self._buckets.pop(sender, (float(BURST), now))
            left = min(BURST, left + (now - counted_at) * PER_MINUTE / 60)
            self._buckets[sender] = (left - 1 if left >= 1 else left, now)
            if len(self._buckets) > MAX_SENDERS:
                self._buckets.popitem(last=False)
            return left >= 1


class FeedbackLog:
    def __init__(self, home: Path, max_bytes: int = MAX_FILE_BYTES) -> None:
        self.path = home / "feedback.jsonl"
        self.older_path = home / "feedback.1.jsonl"
        self._max_bytes = max_bytes
        self._limits = SenderLimits()

    def append(self, body: FeedbackBody, sender: str = "") -> bool:
        """Blocking. Returns whether it was kept; a report that the disk does not take, or whose file is a link, is
        dropped. One write per line: lines of several processes do not mix."""
        if not self._limits.take(sender):
            return False
        try:
            self._write(body)
        except OSError as error:
            log.warning("a feedback report was dropped: %s", os.strerror(error.errno or 0))
            return False
        return True

    def _write(self, body: FeedbackBody) -> None:
        line = orjson.dumps({"time": int(time.time()), **body.model_dump(exclude_none=True)}) + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.write(handle, line)
            is_full = os.fstat(handle).st_size >= self._max_bytes
        finally:
            os.close(handle)
        if is_full:
            os.replace(self.path, self.older_path)
