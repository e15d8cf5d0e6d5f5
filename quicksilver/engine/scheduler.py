"""Decides which sequences run in a step, and with how many rows. No torch.

Order: sequences that decode, then prompts in chunks of the remaining row budget, then waiting requests. If KV pages run
out, the youngest sequence is preempted: it loses its pages, keeps its tokens and canvas, and is recomputed later. The
oldest running sequence can always proceed, so every request finishes.

Admission is round robin over tenants, and first come, first served within a tenant. A request whose pages are not free
now does not block the others: up to `LOOK_AHEAD` candidates are tried in one step. After `MAX_OVERTAKEN` requests were
admitted past it, no other request is admitted before it, so it cannot starve. No request passes a preempted one: it
would take the pages that were just freed, and be preempted next.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from itertools import chain, islice, zip_longest
from time import thread_time

from quicksilver.backends.base import Work
from quicksilver.backends.round_cost import RoundCost
from quicksilver.backends.sequence import Sequence
from quicksilver.engine.canvas_length import CanvasLength
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.grammar_budget import GrammarBudget
from quicksilver.engine.pages import PagePool, prefix_hashes

LOOK_AHEAD = 16
MAX_OVERTAKEN = 64


class Scheduler:
    def __init__(
        self,
        config: EngineConfig,
        pool: PagePool,
        round_cost: RoundCost | None = None,
        clock: Callable[[], float] = thread_time,
    ) -> None:
        self.config = config
        self.pool = pool
        self.canvas_length = CanvasLength(config.canvas_rows, round_cost)
        self.grammar_budget = GrammarBudget(clock)
        self.running: list[Sequence] = []  # in order of admission: the last is the youngest
        self.num_preemptions = 0
        self._waiting: OrderedDict[str, deque[Sequence]] = OrderedDict()
        self._step = 0
        self._rows_left = 0

    @property
    def num_waiting(self) -> int:
        return sum(len(queue) for queue in self._waiting.values())

    @property
    def has_work(self) -> bool:
        return bool(self.running) or self.num_waiting > 0

    def add(self, sequence: Sequence) -> None:
        self._waiting.setdefault(sequence.request.tenant, deque()).append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Drops a running or waiting sequence and releases its pages."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self._waiting[sequence.request.tenant].remove(sequence)
            self._drop_if_empty(sequence.request.tenant)
        self._release(sequence)

    def rewind(self, sequence: Sequence, num_tokens: int) -> None:
        """Cuts a sequence back to its first `num_tokens` tokens. Keeps the pages that these fill; the last token stays
        uncached, since its row predicts the next one."""
        num_pages = (num_tokens - 1) // self.config.page_size
        self.pool.release(sequence.pages[num_pages:])
        del sequence.tokens[num_tokens:]
        # Another list, not a shorter one: a tensor of page ids is cached for this list.
        sequence.pages, sequence.hashes = sequence.pages[:num_pages], sequence.hashes[:num_pages]
        sequence.kv_len = num_pages * self.config.page_size
        sequence.num_published = min(sequence.num_published, num_pages)

    def plan(self) -> list[Work]:
        """The work of the next forward. Sequences over their grammar budget are skipped if any other can run."""
        self.canvas_length.begin_step(self.running)
        skipped = self.grammar_budget.begin_step([*self.running, *chain(*self._waiting.values())])
        return self._plan(skipped) or (self._plan(()) if skipped else [])

    def finish(self, works: list[Work]) -> None:
        """After the outcomes of `works` are committed."""
        self.grammar_budget.end_step([work.sequence for work in works])

    def impossible(self) -> Sequence | None:
        """A waiting sequence that no page is held against and that still cannot be admitted."""
        return next(self._candidates(), None) if not self.running else None

    def _plan(self, skipped: Collection[Sequence]) -> list[Work]:
        works: list[Work] = []
        self._rows_left = self.config.max_rows
        for sequence in self._rotated():
            if sequence not in skipped:
                self._add_work(sequence, works)
        while self._admit():
            if self.running[-1] not in skipped:
                self._add_work(self.running[-1], works)
        return works

    def _rotated(self) -> list[Sequence]:
        """Decoding sequences before prefilling ones. The first one rotates, so a tight row budget starves none."""
        self._step += 1
        start = self._step % max(len(self.running), 1)
        rotated = self.running[start:] + self.running[:start]
        return sorted(rotated, key=lambda sequence: sequence.is_prefilling)

    def _add_work(self, sequence: Sequence, works: list[Work]) -> None:
        if sequence not in self.running:  # preempted earlier in this plan
            return
        self._open_canvas(sequence)
        work = _cut(sequence, self._rows_left, is_first=not works)
        if work is not None and self._has_pages(work, works):
            works.append(work)
            self._rows_left -= work.num_rows

    def _open_canvas(self, sequence: Sequence) -> None:
        if not sequence.is_verifying:
            sequence.canvas_limit = self.canvas_length.limit(len(self.running))
        sequence.open_canvas()

    def _has_pages(self, work: Work, works: list[Work]) -> bool:
        """Whether `work` has the pages that it writes. Preempts younger sequences if needed."""
        sequence = work.sequence
        missing = self._pages_for(_write_end(work)) - len(sequence.pages)
        while missing > self.pool.num_free:
            victim = self._victim(sequence, works)
            if victim is None:
                return False
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.pages += self.pool.allocate(max(missing, 0)) or []
        self._take_spare_pages(work)
        return True

    def _take_spare_pages(self, work: Work) -> None:
        """Pages for forwards that a device runs ahead of the host, while pages are plentiful. Several at a time: each
        change of a page table is a transfer between two rounds."""
        spare, sequence = self.config.spare_pages, work.sequence
        missing = self._pages_for(_write_end(work)) + spare - len(sequence.pages)
        if spare // 4 < missing <= self.pool.num_free // 8:
            sequence.pages += self.pool.allocate(missing) or []

    def _victim(self, sequence: Sequence, works: list[Work]) -> Sequence | None:
        """The youngest sequence without work in this plan; never one older than `sequence`."""
        busy = {work.sequence.id for work in works}
        for candidate in reversed(self.running):
            if candidate.id not in busy:
                return candidate if len(self.running) > 1 else None
            if candidate is sequence:
                return None
        return None

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self.running.remove(sequence)
        self._release(sequence)
        self._waiting.setdefault(sequence.request.tenant, deque()).appendleft(sequence)
        self._waiting.move_to_end(sequence.request.tenant, last=False)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.pages)
        sequence.pages, sequence.kv_len, sequence.num_published = [], 0, 0

    def _admit(self) -> bool:
        """Moves one waiting sequence to `running`, if rows, slots and pages allow it."""
        if not self._waiting or len(self.running) >= self.config.max_running or self._rows_left < 2:
            return False
        overtaken: list[Sequence] = []
        for sequence in self._candidates():
            if self._take_prefix(sequence):
                self._start(sequence)
                for earlier in overtaken:
                    earlier.num_overtaken += 1
                return True
            is_preempted = sequence.has_run
            if is_preempted or sequence.num_overtaken >= MAX_OVERTAKEN:
                return False
            overtaken.append(sequence)
        return False

    def _candidates(self) -> Iterator[Sequence]:
        """The first request of every tenant, then the second of every tenant, and so on."""
        by_place = chain.from_iterable(zip_longest(*(islice(queue, LOOK_AHEAD) for queue in self._waiting.values())))
        return islice((sequence for sequence in by_place if sequence is not None), LOOK_AHEAD)

    def _start(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        self._waiting[tenant].remove(sequence)
        self._waiting.move_to_end(tenant)
        self._drop_if_empty(tenant)
        self.running.append(sequence)

    def _take_prefix(self, sequence: Sequence) -> bool:
        """Shares cached pages. False, with no page held, if there are not enough pages for the rest of the text."""
        page_size, num_tokens = self.config.page_size, len(sequence.tokens)
        self._open_canvas(sequence)
        pages = self.pool.share(prefix_hashes(sequence, page_size, num_tokens - 1))
        needed = self._pages_for(num_tokens + _num_written(sequence)) - len(pages)
        if needed > self.pool.num_free:
            self.pool.release(pages)
            return False
        sequence.pages, sequence.kv_len = pages, len(pages) * page_size
        sequence.num_published = len(pages)
        if not sequence.has_run:
            sequence.cached_tokens, sequence.has_run = sequence.kv_len, True
        return True

    def _drop_if_empty(self, tenant: str) -> None:
        if not self._waiting[tenant]:
            del self._waiting[tenant]

    def _pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.config.page_size)


def _num_written(sequence: Sequence) -> int:
    """Positions after the text whose KV this forward or the next one writes. Branches of a scorer write none."""
    tail = sequence.tail
    return 0 if tail.branches else len(tail.token_ids)


def _write_end(work: Work) -> int:
    """One past the last position whose KV this work writes."""
    drafted = len(work.tail.token_ids) if work.tail is not None and work.tail.is_causal else 0
    return work.end + drafted


def _cut(sequence: Sequence, budget: int, *, is_first: bool) -> Work | None:
    """As much of the sequence's next forward as fits `budget`. The last token runs only together with the whole tail.
    A tail that exceeds the budget runs in a forward of its own."""
    start, num_tokens, tail = sequence.kv_len, len(sequence.tokens), sequence.tail
    context = num_tokens - start
    if context + len(tail.token_ids) <= budget or (is_first and context == 1):
        return Work(sequence, start, num_tokens, tail)
    length = min(context - 1, budget)
    return Work(sequence, start, start + length, None) if length > 0 else None
