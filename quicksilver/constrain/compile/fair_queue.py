"""Turns: a few things that many want, lent to one tenant after the other, so that a crowd delays only itself.

For one event loop; nothing here is a lock between threads.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


class Turns(Generic[Thing]):
    """`take` waits for its tenant's turn, `give` ends one."""

    def __init__(self) -> None:
        self._free: deque[Thing] = deque()
        self._queues: OrderedDict[str, deque[asyncio.Future[Thing]]] = OrderedDict()

    @property
    def num_free(self) -> int:
        return len(self._free)

    async def take(self, tenant: str) -> Thing:
        if self._free:
            return self._free.popleft()
        turn: asyncio.Future[Thing] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(turn.result())
            raise

    def give(self, thing: Thing) -> None:
        """To whoever waits longest of the tenant whose turn it is."""
        while self._queues:
            tenant, queue = self._queues.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._queues[tenant] = queue
            if not turn.done():
                turn.set_result(thing)
                return
        self._free.append(thing)
