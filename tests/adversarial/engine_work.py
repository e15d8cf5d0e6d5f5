"""EngineWork: when the engine of a server last computed something, as its metrics show it."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress

import httpx

ROWS = re.compile(r"^quicksilver_engine_rows_total\{[^}]*\} (\S+)$", re.MULTILINE)
# Between two readings.
PAUSE_S = 1.0


class EngineWork:
    def __init__(self) -> None:
        self.changed_at = time.monotonic()
        self._rows = 0.0

    def note(self, metrics: str, now: float) -> None:
        """Compares the rows computed so far with the last reading."""
        rows = sum(float(value) for value in ROWS.findall(metrics))
        if rows != self._rows:
            self._rows, self.changed_at = rows, now

    async def follow(self, client: httpx.AsyncClient, headers: dict[str, str]) -> None:
        """Reads the metrics until it is cancelled. A server that does not answer shows no work."""
        while True:
            with suppress(httpx.HTTPError):
                reply = (await client.get("/metrics", headers=headers)).raise_for_status()
                self.note(reply.text, time.monotonic())
            await asyncio.sleep(PAUSE_S)
