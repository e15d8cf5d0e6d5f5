"""CaptureSettings: which suggestions each project captures, as `quicksilver feedback capture` has set it."""

from __future__ import annotations

import time

from quicksilver.server.storage import Storage
from quicksilver.tuning.feedback import captured_kinds

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
