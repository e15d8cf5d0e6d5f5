"""Who runs this step, with how many rows. No torch.

Fair between tenants (round robin) and first come, first served within one. Canvases go first, prompts fill the rest of
the row budget in chunks. When pages run out the youngest request is preempted: its pages go, its tokens and canvas
stay, and its context is recomputed later. The oldest running request can always proceed, so everything finishes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection

from quicksilver.backends.base import Work
from quicksilver.backends.round_cost import AcceptanceHistory, RoundCost
from quicksilver.backends.sequence import Sequence
from quicksilver.core import DecoderName
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.pages import PagePool, prefix_hashes

SHORTEST_CANVAS = 4
"""What load leaves of a `verify` canvas."""


class Scheduler:
    def __init__(self, config: EngineConfig, pool: PagePool, round_cost: RoundCost | None = None) -> None:
        self.config = config
        self.pool = pool
        self.round_cost = round_cost
        self.running: list[Sequence] = []  # in order of admission: the last is the youngest
        self._waiting: OrderedDict[str, deque[Sequence]] = OrderedDict()
        self._turn = 0
        self._rows_left = 0
        self.memory = AcceptanceHistory()
        self._canvas_len = self._paced_for = 0
        self._is_verifying = False
        self.num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        return sum(len(queue) for queue in self._waiting.values())

    @property
    def has_work(self) -> bool:
        return bool(self.running) or self.num_waiting > 0

    def add(self, sequence: Sequence) -> None:
        self._waiting.setdefault(sequence.request.tenant, deque()).append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Finished, failed or aborted: give its pages back, wherever it stands."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self._waiting[sequence.request.tenant].remove(sequence)
            self._drop_if_empty(sequence.request.tenant)
        self._release(sequence)

    def plan(self, resting: Collection[Sequence] = ()) -> list[Work]:
        """The work of one forward: decoding requests first, then prompts, then newcomers. Whoever rests gets none."""
        works: list[Work] = []
        self._rows_left = self.config.max_rows
        if self.round_cost is not None:
            self.memory.fade()
            self._is_verifying = self._mostly_verify()
            self._canvas_len, self._paced_for = self._canvas_len if self.running else 0, -1
        for sequence in self._in_turn():
            if sequence not in resting:
                self._give_work(sequence, works)
        while self._admit():
            if self.running[-1] not in resting:
                self._give_work(self.running[-1], works)
        return works

    def _in_turn(self) -> list[Sequence]:
        """Decoding before prefilling; within each the start rotates, so that a tight budget starves nobody."""
        self._turn += 1
        start = self._turn % max(len(self.running), 1)
        rotated = self.running[start:] + self.running[:start]
        return sorted(rotated, key=_is_prefilling)

    def _give_work(self, sequence: Sequence, works: list[Work]) -> None:
        if sequence not in self.running:  # preempted by an earlier one in this very plan
            return
        if not sequence.is_verifying:
            sequence.canvas_limit = self._canvas_limit()
        work = _cut(sequence, self._rows_left, is_first=not works)
        if work is not None and self._has_pages(work, works):
            works.append(work)
            self._rows_left -= work.num_rows

    def _has_pages(self, work: Work, works: list[Work]) -> bool:
        """Whether the pages that `work` writes are there, preempting younger requests for them if need be."""
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
        self._take_spare(work)
        return True

    def _take_spare(self, work: Work) -> None:
        """Pages for forwards that a device may run ahead of us; only while pages are plentiful. Several at a time: each
        time a page table grows, it is sent between two rounds."""
        spare, sequence = self.config.spare_pages, work.sequence
        missing = self._pages_for(_write_end(work)) + spare - len(sequence.pages)
        if spare // 4 < missing <= self.pool.num_free // 8:
            sequence.pages += self.pool.allocate(missing) or []

    def _victim(self, sequence: Sequence, works: list[Work]) -> Sequence | None:
        """The youngest request without work in this plan; never one older than `sequence`."""
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
        """Move the next waiting request to `running` if rows, slots and pages allow."""
        if not self._waiting or len(self.running) >= self.config.max_running or self._rows_left < 2:
            return False
        tenant = next(iter(self._waiting))
        sequence = self._waiting[tenant][0]
        if not self._take_prefix(sequence):
            return False
        self._waiting[tenant].popleft()
        self._waiting.move_to_end(tenant)
        self._drop_if_empty(tenant)
        self.running.append(sequence)
        return True

    def _take_prefix(self, sequence: Sequence) -> bool:
        """Share cached pages; False (and nothing held) if the rest of the text has no room now."""
        page_size, num_tokens = self.config.page_size, len(sequence.tokens)
        sequence.canvas_limit = self._canvas_limit()
        pages = self.pool.share(prefix_hashes(sequence, page_size, num_tokens - 1))
        needed = self._pages_for(num_tokens + len(sequence.tail().token_ids)) - len(pages)
        if needed > self.pool.num_free:
            self.pool.release(pages)
            return False
        sequence.pages, sequence.kv_len = pages, len(pages) * page_size
        sequence.num_published = len(pages)
        if not sequence.has_run:
            sequence.cached_tokens, sequence.has_run = sequence.kv_len, True
        return True

    def _canvas_limit(self) -> int:
        """Canvases live on rows that cost nothing, and those are shared; 0 is no limit."""
        if len(self.running) <= 1 and self.config.one_forward_len > 0:
            return self.config.one_forward_len
        limits = [1] if self._is_verifying and len(self.running) > 1 else []
        if self.round_cost is not None:
            limits.append(self._paced_len(self.round_cost))
        if self.config.canvas_rows:
            limits.append(max(self.config.canvas_rows // max(len(self.running), 1), SHORTEST_CANVAS))
        return min(limits, default=0)

    def _paced_len(self, round_cost: RoundCost) -> int:
        """What pays for as many as run, asked once a plan for each number of them."""
        if self._paced_for != len(self.running):
            self._paced_for = len(self.running)
            self._canvas_len = round_cost.canvas_len(len(self.running), self.memory.survival(), self._canvas_len)
        return self._canvas_len

    def _mostly_verify(self) -> bool:
        """Whether this forward is to verify: whoever would draft now takes a plain step instead and drafts with the
        others in the next, so that every second forward has no canvas at all and is the cheaper for it."""
        drafting = verifying = 0
        for sequence in self.running:
            if sequence.request.params.decoder.name is DecoderName.VERIFY and not _is_prefilling(sequence):
                is_draft = sequence.canvas is not None and sequence.canvas.is_draft
                verifying += is_draft
                drafting += not is_draft
        return verifying >= max(drafting, 1)

    def _drop_if_empty(self, tenant: str) -> None:
        if not self._waiting[tenant]:
            del self._waiting[tenant]

    def _pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.config.page_size)


def _is_prefilling(sequence: Sequence) -> bool:
    return len(sequence.tokens) - sequence.kv_len > sequence.request.params.decoder.canvas_len + 1


def _write_end(work: Work) -> int:
    """One past the last position whose KV this work writes."""
    drafted = len(work.tail.token_ids) if work.tail is not None and work.tail.is_causal else 0
    return work.end + drafted


def _cut(sequence: Sequence, budget: int, *, is_first: bool) -> Work | None:
    """As much of the sequence's next forward as fits. The last token goes only together with the whole tail; a tail
    wider than the whole budget gets a forward of its own rather than none."""
    start, num_tokens, tail = sequence.kv_len, len(sequence.tokens), sequence.tail()
    context = num_tokens - start
    if context + len(tail.token_ids) <= budget or (is_first and context == 1):
        return Work(sequence, start, num_tokens, tail)
    length = min(context - 1, budget)
    return Work(sequence, start, start + length, None) if length > 0 else None
