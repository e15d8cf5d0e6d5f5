"""ProcessPool: a fixed number of child processes, lent to tenants in round-robin order.

Many requests of one tenant delay only that tenant. Idle processes get heartbeats. A process that was killed, stopped or
exceeded a limit is restarted until it works. For one event loop; not safe between threads.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from enum import Enum, auto
from logging import getLogger
from typing import Any, Generic, Self, TypeVar

from quicksilver.constrain.compile.process import LimitedProcess, ProcessLost
from quicksilver.errors import QuicksilverError

logger = getLogger(__name__)

# Failed starts before `ProcessPool.start` gives up. Later restarts are unlimited.
START_ATTEMPTS = 3

Item = TypeVar("Item")
OneProcess = TypeVar("OneProcess", bound=LimitedProcess)
Result = TypeVar("Result")


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


class PoolRefusal(Enum):
    """Why a request gets no process: the pool is not running, its queue is full, or the deadline has passed."""

    CLOSED = auto()
    FULL = auto()
    LATE = auto()


class ProcessPool(ABC, Generic[OneProcess]):
    """`start`, then requests, then `stop`; all on one event loop."""

    def __init__(
        self,
        processes: Sequence[OneProcess],
        deadline_s: float,
        heartbeat_s: float,
        max_waiting: int,
        max_waiting_tenant: int,
    ) -> None:
        """`deadline_s` is for one request, including the wait for a process. The last two bound the sizes (`_turn`) of
        the requests of all tenants, and of one tenant, that wait or are in work."""
        # Processes that were replaced because they exceeded a limit, stalled or died.
        self.num_replaced = 0
        self._processes = processes
        self._deadline_s, self._heartbeat_s = deadline_s, heartbeat_s
        self._max_waiting, self._max_waiting_tenant = max_waiting, max_waiting_tenant
        self._idle: FairQueue[OneProcess] = FairQueue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: Counter[str] = Counter()
        self._is_open = False

    @property
    def is_ready(self) -> bool:
        """Whether at least one process answered its last request or heartbeat."""
        return self._is_open and self.num_ready > 0

    @property
    def num_ready(self) -> int:
        return sum(process.is_ready for process in self._processes)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    @abstractmethod
    def _refusal(self, reason: PoolRefusal, detail: str = "") -> QuicksilverError:
        """The error for a request without a process. `detail` says why the processes cannot be started."""

    async def start(self) -> None:
        """Returns when all processes are ready; raises a refusal if they cannot be started."""
        try:
            await asyncio.gather(*(process.restart(START_ATTEMPTS) for process in self._processes))
        except (ProcessLost, OSError) as error:
            await self.stop()
            raise self._refusal(PoolRefusal.CLOSED, str(error)) from error
        self._is_open = True
        for process in self._processes:
            self._idle.give(process)
        self._run(self._watch())

    async def stop(self) -> None:
        """Kills all processes. Afterwards every request is refused."""
        self._is_open = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(process.kill() for process in self._processes))
        self._idle = FairQueue()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @asynccontextmanager
    async def _turn(self, tenant: str, size: int = 1) -> AsyncIterator[OneProcess]:
        """A process for one request of this size, within the deadline."""
        if not self._is_open:
            raise self._refusal(PoolRefusal.CLOSED)
        if not self._has_room(tenant, size):
            raise self._refusal(PoolRefusal.FULL)
        self._waiting[tenant] += size
        try:
            async with asyncio.timeout(self._deadline_s):
                process = await self._idle.take(tenant)
                try:
                    yield process
                finally:
                    self._give_back(process)
        except (TimeoutError, ProcessLost) as error:
            raise self._refusal(PoolRefusal.LATE) from error
        finally:
            self._waiting[tenant] -= size
            if not self._waiting[tenant]:
                del self._waiting[tenant]

    def _has_room(self, tenant: str, size: int) -> bool:
        """Whether a request may wait. One request of a tenant without others may have any size."""
        own = self._waiting[tenant]
        fits = not own or own + size <= self._max_waiting_tenant
        return fits and self._waiting.total() + size <= self._max_waiting

    async def _retry(self, process: OneProcess, work: Callable[[], Awaitable[Result]]) -> Result:
        """The result of `work`; once more in a fresh process if the first was killed or stopped."""
        try:
            return await work()
        except ProcessLost:
            self.num_replaced += 1
            await process.restart()
            return await work()

    def _give_back(self, process: OneProcess) -> None:
        """Makes an idle process available; restarts one that owes a reply or is dead."""
        if process.is_idle:
            self._idle.give(process)
        elif self._is_open:
            self.num_replaced += 1
            self._run(self._restart(process))

    async def _restart(self, process: OneProcess) -> None:
        await process.restart()
        self._idle.give(process)

    async def _watch(self) -> None:
        """Sends heartbeats to idle processes and replaces those that do not answer."""
        while True:
            await asyncio.sleep(self._heartbeat_s)
            await asyncio.gather(*(self._heartbeat(process) for process in self._idle.take_free()))

    async def _heartbeat(self, process: OneProcess) -> None:
        try:
            await process.answers()
        except Exception:  # one process must not end the heartbeats of all
            logger.exception("the heartbeat of a process failed")
        finally:
            self._give_back(process)

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
