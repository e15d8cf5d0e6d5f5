"""Lends a few shared objects to waiting tenants in round-robin order, so that many requests of one tenant delay only
that tenant.

For one event loop; not safe between threads.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """`take` waits for a free item; `give` returns it. Within a tenant the order is first come, first served."""

    def __init__(self) -> None:
        self._free: deque[Item] = deque()
        self._queues: OrderedDict[str, deque[asyncio.Future[Item]]] = OrderedDict()

    @property
    def num_free(self) -> int:
        return len(self._free)

    async def take(self, tenant: str) -> Item:
        if self._free:
            return self._free.popleft()
        turn: asyncio.Future[Item] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(turn.result())
            raise

    def take_free(self) -> list[Item]:
        """Takes all free items without waiting."""
        items = list(self._free)
        self._free.clear()
        return items

    def give(self, item: Item) -> None:
        """Hands the item to the longest-waiting request of the next tenant; without one the item becomes free."""
        while self._queues:
            tenant, queue = self._queues.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._queues[tenant] = queue
            if not turn.done():
                turn.set_result(item)
                return
        self._free.append(item)
