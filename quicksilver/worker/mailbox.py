"""The queue of events between the engine and the reader of one request.

No token is dropped. Deltas that wait for a slow reader are joined into one, so such a reader gets fewer and
larger events. Only the newest frame is kept, so a slow reader of a `diffusing` stream has at most one frame in memory.
All methods run in one event loop; the engine's thread calls them through `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Collection
from dataclasses import replace
from itertools import chain

from quicksilver.core import Delta, Event, Frame


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

    def _take_all(self) -> Delta:
        if len(self._deltas) == 1:
            return self._deltas.popleft()
        joined = join_deltas(self._deltas)
        self._deltas.clear()
        return joined

    async def read(self) -> AsyncGenerator[Event, None]:
        """Events until the finishing delta; raises the error that `fail` was called with."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._deltas:
                delta = self._take_all()
                yield delta
                if delta.finish is not None:
                    return
            if self._error is not None:
                raise self._error
            if self._frame is not None:
                frame, self._frame = self._frame, None
                yield frame
