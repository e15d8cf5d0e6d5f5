"""The queue of events between the engine and the reader of one request.

Deltas are never dropped. Only the newest frame is kept, so a slow reader of a `diffusing` stream has at most one frame
in memory. All methods run in one event loop; the engine's thread calls them through `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from quicksilver.core import Delta, Event, Frame


class Mailbox:
    def __init__(self) -> None:
        self._deltas: deque[Delta] = deque()
        self._frame: Frame | None = None
        self._error: Exception | None = None
        self._arrived = asyncio.Event()
        self.is_finished = False  # the last delta, or an error, was put in

    def put(self, event: Event) -> None:
        if isinstance(event, Frame):
            self._frame = event
        else:
            self._deltas.append(event)
            self.is_finished = event.finish is not None
        self._arrived.set()

    def fail(self, error: Exception) -> None:
        """The reader gets what arrived before, then `error`."""
        self._error = error
        self.is_finished = True
        self._arrived.set()

    async def read(self) -> AsyncGenerator[Event, None]:
        """Events until the finishing delta; raises the error that `fail` was called with."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._deltas:
                delta = self._deltas.popleft()
                yield delta
                if delta.finish is not None:
                    return
            if self._error is not None:
                raise self._error
            if self._frame is not None:
                frame, self._frame = self._frame, None
                yield frame
