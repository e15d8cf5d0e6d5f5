"""The queue of events between the engine and the reader of one request.

No token is dropped. Deltas that wait for a slow reader are joined into one, so such a reader gets fewer and
larger events. If the event loop is so busy that a reader starts more than `BEHIND_S` after a delta arrived, the reader
waits for further deltas too, until `MAX_HOLD_S` after that arrival at most. The first and the last event of a request
are never held. Only the newest frame is kept, so a slow reader of a `diffusing` stream has at most one frame in memory.
All methods run in one event loop; the engine's thread calls them through `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import replace
from itertools import chain

from quicksilver.core import Delta, Event, Frame

# Seconds between the arrival of a delta and the turn of its reader after which the event loop is behind.
BEHIND_S = 0.010
# The longest time for which a delta is held so that later ones can be joined with it.
MAX_HOLD_S = 0.020


def join_deltas(deltas: Collection[Delta]) -> Delta:
    """One Delta with the tokens of all, and the state after the last one."""
    *_, last = deltas
    usage = next((delta.usage for delta in reversed([*deltas]) if delta.usage is not None), None)
    return replace(
        last,
        token_ids=tuple(chain.from_iterable(delta.token_ids for delta in deltas)),
        logprobs=tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
        num_forced=sum(delta.num_forced for delta in deltas),
        usage=usage,
    )


class Mailbox:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._deltas: deque[Delta] = deque()
        self._oldest = 0.0  # arrival of the first of `_deltas`
        self._has_delivered = False
        self._ended = asyncio.Event()
        self._frame: Frame | None = None
        self._error: Exception | None = None
        self._arrived = asyncio.Event()
        self.is_finished = False  # the last delta, or an error, was put in

    def put(self, event: Event) -> None:
        if isinstance(event, Frame):
            self._frame = event
        else:
            if not self._deltas:
                self._oldest = self._clock()
            self._deltas.append(event)
            if event.finish is not None:
                self._end()
        self._arrived.set()

    def fail(self, error: Exception) -> None:
        """The reader gets what arrived before, then `error`."""
        self._error = error
        self._end()
        self._arrived.set()

    def _end(self) -> None:
        self.is_finished = True
        self._ended.set()

    def _take_all(self) -> Delta:
        if len(self._deltas) == 1:
            return self._deltas.popleft()
        joined = join_deltas(self._deltas)
        self._deltas.clear()
        return joined

    async def _hold(self) -> None:
        """Waits for further deltas if the event loop is behind; not longer than until the end of the request."""
        waited_s = self._clock() - self._oldest
        if BEHIND_S < waited_s < MAX_HOLD_S and not self.is_finished:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MAX_HOLD_S - waited_s):
                    await self._ended.wait()

    async def read(self) -> AsyncGenerator[Event, None]:
        """Events until the finishing delta; raises the error that `fail` was called with."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._deltas:
                if self._has_delivered:
                    await self._hold()
                delta = self._take_all()
                self._has_delivered = True
                yield delta
                if delta.finish is not None:
                    return
            if self._error is not None:
                raise self._error
            if self._frame is not None:
                frame, self._frame = self._frame, None
                yield frame
