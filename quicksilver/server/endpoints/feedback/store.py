"""FeedbackLog: reports of accepted, rejected and ignored suggestions, in a file or in the accounts database.

Reports need no API key, so their size and their rate are bounded. A report above the rate limit is dropped, but the
sender gets a normal reply.

- File: one JSON object per line. A full file is renamed and replaces the previous old file, so the newest reports are
  kept.
- Database, which all servers share: one object per reply, with the last report about it. The oldest are deleted.

CaptureSettings: which suggestions each project captures, as `quicksilver feedback capture` has set it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from quicksilver.accounts.records import StoredObject
from quicksilver.errors import Unavailable
from quicksilver.server.endpoints.feedback.wire import FeedbackBody
from quicksilver.server.storage import DAY_S, Storage
from quicksilver.tuning.feedback import FEEDBACK, REPORTS_OWNER, captured_kinds

if TYPE_CHECKING:
    from quicksilver.accounts.objects import ObjectStore


log = logging.getLogger("quicksilver.server")

MAX_FILE_BYTES = 32 * 2**20
# Of reports in the database: their age, and how many are written between two deletions of old ones.
MAX_DAYS, TRIM_EVERY = 90, 100
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
    """With `storage`, reports are kept there; otherwise in files of `home`."""

    def __init__(self, home: Path, max_bytes: int = MAX_FILE_BYTES, storage: Storage | None = None) -> None:
        self.path = home / "feedback.jsonl"
        self.older_path = home / "feedback.1.jsonl"
        self._storage = storage
        self._max_bytes = max_bytes
        self._num_stored = 0
        self._limits = SenderLimits()

    async def add(self, body: FeedbackBody, sender: str = "") -> bool:
        """Whether the report was kept."""
        if self._storage is None:
            return await asyncio.to_thread(self.append, body, sender)
        if not self._limits.take(sender):
            return False
        try:
            await self._storage.run(lambda store: self._put(store, body))
        except Unavailable as error:
            log.warning("a feedback report was dropped: %s", error.message)
            return False
        return True

    def _put(self, store: ObjectStore, body: FeedbackBody) -> None:
        store.put(REPORTS_OWNER, [StoredObject(FEEDBACK, body.request_id, _record(body))])
        if self._num_stored % TRIM_EVERY == 0:
            store.trim(REPORTS_OWNER, (FEEDBACK,), self._max_bytes, time.time() - MAX_DAYS * DAY_S)
        self._num_stored += 1

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
        line = _record(body) + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.write(handle, line)
            is_full = os.fstat(handle).st_size >= self._max_bytes
        finally:
            os.close(handle)
        if is_full:
            os.replace(self.path, self.older_path)


def _record(body: FeedbackBody) -> bytes:
    return orjson.dumps({"time": int(time.time()), **body.model_dump(exclude_none=True)})


# Seconds for which the setting of a project is remembered.
KEPT_S = 30.0
MAX_OWNERS = 4096


class CaptureSettings:
    """Used on one event loop only."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[str, tuple[float, frozenset[str]]] = {}

    async def kinds_of(self, owner: str) -> frozenset[str]:
        if not self._storage.has_objects:
            return frozenset()
        known, now = self._known.get(owner), time.monotonic()
        if known is None or now - known[0] > KEPT_S:
            if len(self._known) >= MAX_OWNERS:
                self._known.clear()
            known = now, await self._storage.run(lambda store: captured_kinds(store, owner))
            self._known[owner] = known
        return known[1]
