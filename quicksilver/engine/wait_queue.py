"""WaitQueue: the order in which waiting requests are admitted, and an estimate of when a new one would start. No torch.

Interactive requests come before batch requests. While both wait, every `BATCH_EVERY`-th admission is a batch request,
so that batches progress under any load. Within a class, the tenant comes first that has been served the fewest tokens
among those with open requests; within a tenant, requests are in order of arrival. When a tenant becomes active, its
count is raised to that of the least served active tenant, so idle time earns no credit, and lowered to at most
`MAX_DEBT` above it, so earlier work does not delay it for long.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, islice, zip_longest

from quicksilver.backends.base import Sequence

# Candidates for one admission: a request that does not fit now lets the next ones pass.
LOOK_AHEAD = 16
BATCH_EVERY = 16
MAX_DEBT = 65_536
# Longest time over which the rate of admissions is measured; after it, the first half is left out.
MEASURED_S = 30.0
# Seconds between two searches for requests that wait too long.
CHECK_S = 0.1

_Queues = dict[str, deque[Sequence]]


class WaitQueue:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Interactive and batch requests (index `Request.is_batch`), by tenant.
        self._queues: tuple[_Queues, _Queues] = ({}, {})
        # Preempted requests, by the same index. They are admitted before the others of their class.
        self._preempted: tuple[deque[Sequence], deque[Sequence]] = (deque(), deque())
        self._served: dict[str, float] = {}
        self._num_open: Counter[str] = Counter()
        self._num_waiting = 0
        self._num_since_batch = 0
        self._next_check = 0.0
        # Since when requests wait without a break, and how many were admitted since then.
        self._backlog_began = 0.0
        self._num_admitted = 0.0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        for preempted, queues in zip(self._preempted, self._queues, strict=True):
            yield from chain(preempted, *queues.values())

    @property
    def has_interactive(self) -> bool:
        return bool(self._queues[False] or self._preempted[False])

    def add(self, sequence: Sequence) -> None:
        """A request that has not run yet."""
        request = sequence.request
        if request.start_within_s and request.resume is None:
            sequence.start_by = self._clock() + request.start_within_s
        self._enter(request.tenant)
        self._count_one()
        self._queues[request.is_batch].setdefault(request.tenant, deque()).append(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """A request that was preempted."""
        self._count_one()
        self._preempted[sequence.request.is_batch].appendleft(sequence)

    def admit(self, sequence: Sequence, num_rows: int) -> None:
        """Takes a request out that starts with `num_rows` uncached rows."""
        self._take_out(sequence)
        self.charge(sequence.request.tenant, num_rows)
        self._num_admitted += 1
        self._num_since_batch = 0 if sequence.request.is_batch else self._num_since_batch + 1

    def drop(self, sequence: Sequence) -> None:
        """Takes a request out that ends without having been admitted again."""
        self._take_out(sequence)
        self.leave(sequence.request.tenant)

    def charge(self, tenant: str, num_tokens: int) -> None:
        self._served[tenant] += num_tokens

    def leave(self, tenant: str) -> None:
        """One request of the tenant has ended."""
        self._num_open[tenant] -= 1
        if self._num_open[tenant] <= 0:
            del self._num_open[tenant]
        if not self._num_open:
            self._served.clear()

    def candidates(self, excluded: Collection[Sequence] = ()) -> Iterator[Sequence]:
        """The first request of every tenant, then the second of every tenant, and so on, at most `LOOK_AHEAD`, without
        those in `excluded`."""
        is_batch_first = self._num_since_batch >= BATCH_EVERY - 1
        both = chain(self._in_turn(is_batch_first, excluded), self._in_turn(not is_batch_first, excluded))
        return islice(both, LOOK_AHEAD)

    def _in_turn(self, is_batch: bool, excluded: Collection[Sequence]) -> Iterator[Sequence]:
        def admissible(queue: Iterable[Sequence]) -> Iterator[Sequence]:
            return (sequence for sequence in queue if sequence not in excluded)

        queues = self._queues[is_batch]
        tenants = sorted(queues, key=lambda tenant: self._served[tenant])
        by_tenant = (islice(admissible(queues[tenant]), LOOK_AHEAD) for tenant in tenants)
        by_place = chain.from_iterable(zip_longest(*by_tenant))
        preempted = admissible(self._preempted[is_batch])
        return chain(preempted, (sequence for sequence in by_place if sequence is not None))

    # Start estimates

    def start_s(self, tenant: str) -> float:
        """Seconds until a new interactive request of the tenant would start, from the rate of admissions since the
        queue was last empty; 0 if nothing waits."""
        queues = self._queues[False]
        if not queues:
            return 0.0
        num_own = len(queues.get(tenant, ()))
        num_ahead = sum(min(len(queue), num_own + 1) for name, queue in queues.items() if name != tenant) + num_own
        elapsed_s = self._elapsed_s()
        return num_ahead * elapsed_s / (self._num_admitted + 1)

    def overdue(self) -> list[Sequence]:
        """Requests that have not run and were to start by now. Looked for at intervals."""
        now = self._clock()
        if now < self._next_check:
            return []
        self._next_check = now + CHECK_S
        return [one for one in self if not one.has_run and one.start_by and now > one.start_by]

    def _elapsed_s(self) -> float:
        elapsed_s = self._clock() - self._backlog_began
        if elapsed_s > MEASURED_S:
            self._backlog_began += elapsed_s / 2
            self._num_admitted /= 2
            elapsed_s /= 2
        return elapsed_s

    def _count_one(self) -> None:
        if not self._num_waiting:
            self._backlog_began, self._num_admitted = self._clock(), 0.0
        self._num_waiting += 1

    def _enter(self, tenant: str) -> None:
        if tenant not in self._num_open:
            least = min((self._served[each] for each in self._num_open), default=0.0)
            self._served[tenant] = min(max(self._served.get(tenant, least), least), least + MAX_DEBT)
        self._num_open[tenant] += 1

    def _take_out(self, sequence: Sequence) -> None:
        queues, tenant = self._queues[sequence.request.is_batch], sequence.request.tenant
        preempted = self._preempted[sequence.request.is_batch]
        self._num_waiting -= 1
        if sequence in preempted:
            preempted.remove(sequence)
            return
        queues[tenant].remove(sequence)
        if not queues[tenant]:
            del queues[tenant]
