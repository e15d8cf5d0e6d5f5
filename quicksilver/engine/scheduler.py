"""Decides which sequences run in a step, and with how many rows. No torch.

Order: sequences that decode, then requests that are admitted now with half of the remaining row budget, then chunks of
the prompts of sequences admitted before. If KV pages run out, the youngest sequence is preempted: it loses its pages,
keeps its tokens and canvas, and is recomputed later. The oldest one always proceeds, so all requests finish.

The order of admission is that of `WaitQueue`: priority, then the least served tenant, then arrival. If
`max_running` sequences run and an interactive request waits, the youngest batch request is preempted. A request whose
pages are not free now does not block the others: up to `LOOK_AHEAD` candidates are tried in one step. After
`MAX_OVERTAKEN` requests were admitted past it, other requests of its tenant wait, and those of other tenants may use a
quarter of the free pages. After `MAX_OVERTAKEN_BY_OTHERS` no request is admitted before it, so it cannot starve. No
request is admitted before a preempted one: it would take the pages that were just freed, and be preempted next.

Requests that run alone (`Request.runs_alone`) have every second step, one at a time; the others run in between. Each is
admitted when its turn comes, so that it shares the cached prefix of the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from time import monotonic

from quicksilver.backends.base import Sequence, Work
from quicksilver.backends.round_cost import RoundCost
from quicksilver.core import DecoderName
from quicksilver.diffusion.score import Scorer
from quicksilver.engine.admission import BATCH_EVERY, ActiveTenants, WaitQueue
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.decode_slots import DecodeSlots
from quicksilver.engine.pages import PagePool, prefix_hashes
from quicksilver.engine.step_limits import CanvasLength, GrammarBudget, SharedSteps, cut_to_budget

MAX_OVERTAKEN, MAX_OVERTAKEN_BY_OTHERS = 64, 1024
# A prompt runs in a forward of its own beside the rounds of the slots. From this many slots on, new requests are
# admitted together: once this many wait, or this many steps after the last admission.
MANY_SLOTS, ADMITTED_TOGETHER, ADMISSION_STEPS = 16, 4, 4
# Milliseconds that a forward of prompts may delay requests that decode, and the number of cached tokens that doubles
# the time of a prompt's row.
PROMPT_MS, DOUBLING_CONTEXT = 12.0, 8192


class Scheduler:
    def __init__(
        self,
        config: EngineConfig,
        pool: PagePool,
        round_cost: RoundCost | None = None,
        clock: Callable[[], float] | None = None,
        slots: DecodeSlots | None = None,
        wall_clock: Callable[[], float] = monotonic,
    ) -> None:
        self.config = config
        self._max_running, self._decode_rows = config.running_limit, config.decode_limit
        self._prompt_rows = config.prompt_limit
        self.pool = pool
        self.slots = slots
        self.canvas_length = CanvasLength(config.canvas_rows, round_cost, config.max_rows)
        self.grammar_budget = GrammarBudget(clock)
        self.running: list[Sequence] = []  # in order of admission: the last is the youngest
        self.num_preemptions = 0
        self.waiting = WaitQueue(wall_clock)
        self._step = 0
        self._rows_left = 0
        self._promised_pages = 0  # to running prompts, while requests are admitted before them
        self._proposals_left = 0
        self._has_run_alone = False  # a request in the last step
        self._preempted: set[Sequence] = set()  # in this plan
        self._not_admissible: frozenset[Sequence] = frozenset()  # requests whose turn to run alone comes later
        self._admitted_at = 0  # step of the last admission
        self.tenants = ActiveTenants(wall_clock)
        self._shared = SharedSteps(config, self.tenants, wall_clock)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def has_work(self) -> bool:
        return bool(self.running) or self.num_waiting > 0

    @property
    def score_pass_rows(self) -> int:
        """Rows of one pass of a new scoring request. Alone it has the budget except for one context row."""
        if not self.has_work and not self._shared.is_limited:
            return max(self.config.max_rows - 1, 1)
        return self._shared.prompt_rows(self.config.score_pass_rows)

    def add(self, sequence: Sequence) -> None:
        self.tenants.note(sequence.request.tenant)
        self.waiting.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Drops a running or waiting sequence and releases its pages."""
        if sequence in self.running:
            self._leave_slot(sequence)
            self.running.remove(sequence)
            self.waiting.charge(sequence.request.tenant, len(sequence.tokens) - sequence.num_prompt)
            self.waiting.leave(sequence.request.tenant)
        else:
            self.waiting.drop(sequence)
        self._release(sequence)

    def continue_with(self, sequence: Sequence, num_kept: int, added: Seq[int]) -> None:
        """Replaces the tokens after the first `num_kept` by `added`. Keeps the KV of the former; the last token stays
        uncached, since its row predicts the next one."""
        page_size, is_cut = self.config.page_size, num_kept < len(sequence.tokens)
        sequence.tokens[num_kept:] = added
        sequence.kv_len = min(sequence.kv_len, num_kept, len(sequence.tokens) - 1)
        if not is_cut:
            return
        num_full = sequence.kv_len // page_size
        if num_full < sequence.num_published:  # others may read this page, so it is not written again
            sequence.kv_len = num_full * page_size
        num_pages = self._pages_for(sequence.kv_len)
        self.pool.release(sequence.pages[num_pages:])
        # Another list, not a shorter one: a tensor of page ids is cached for this list.
        sequence.pages, sequence.hashes = sequence.pages[:num_pages], sequence.hashes[:num_full]
        sequence.num_published = min(sequence.num_published, num_full)

    def plan(self) -> list[Work]:
        """The work of the next forward, without the sequences that decode in slots. Sequences over their grammar budget
        are skipped if any other can run."""
        self._shared.begin(self.running, self.num_waiting)
        self._preempt_batch()
        sequences = [*self.running, *self.waiting]
        run_alone = [sequence for sequence in sequences if sequence.runs_alone]
        self._not_admissible = frozenset(run_alone[1:])
        if self.slots is not None:
            self.slots.begin_step([] if run_alone else self.running)
            self.slots.grow_pages()
        self.canvas_length.begin_step([sequence for sequence in self.running if sequence.slot < 0])
        skipped = self.grammar_budget.begin_step(sequences)
        if run_alone:
            without_others, without_run_alone = set(sequences) - {run_alone[0]}, {*skipped, *run_alone}
            turns = (without_others, without_run_alone)
            for excluded in reversed(turns) if self._has_run_alone else turns:
                if works := self._plan(excluded):
                    self._has_run_alone = excluded is without_others
                    return works
        return self._plan(skipped) or (self._plan(()) if skipped else [])

    def finish(self, works: list[Work]) -> None:
        """After the outcomes of `works` are committed."""
        self._shared.end(works)
        self.grammar_budget.end_step([work.sequence for work in works])

    def impossible(self) -> Sequence | None:
        """A waiting sequence that no page is held against and that still cannot be admitted."""
        return next(self.waiting.candidates(self._not_admissible), None) if not self.running else None

    def _plan(self, skipped: Collection[Sequence]) -> list[Work]:
        works: list[Work] = []
        rotated = self._rotated()
        row_budget = self._row_budget()
        self._rows_left, self._proposals_left = max(row_budget, self._decode_rows), self._decode_rows
        paused = self._shared.paused(rotated, self.waiting.candidates())
        if len(self.waiting) and self._step % 2:
            paused += [sequence for sequence in rotated if sequence not in paused and self._is_paused(sequence)]
        if paused:
            rotated = [sequence for sequence in rotated if sequence not in paused]
        bulk = [sequence for sequence in rotated if self._shared.is_bulk(sequence)]
        for sequence in rotated if not bulk else [one for one in rotated if one not in bulk]:
            if sequence not in skipped and not self._take_slot(sequence):
                self._add_work(sequence, works)
        self._rows_left = min(self._rows_left, self._shared.prompt_rows(row_budget, works))
        if bulk and len(self.waiting):
            self._admit_beside(bulk, skipped, works)
        for sequence in bulk:
            if sequence not in skipped and not self._take_slot(sequence):
                self._add_work(sequence, works, is_first=self._shared.is_limited and sequence is bulk[0])
        self._admit_all(skipped, works)
        for sequence in paused if not works else ():
            if sequence not in skipped:
                self._add_work(sequence, works)
        return works

    def _is_paused(self, sequence: Sequence) -> bool:
        """Whether a scoring request waits in this step: while requests wait, one whose pass leaves no rows for others
        runs in every second step only."""
        if not isinstance(sequence.decoder, Scorer):
            return False
        self._open_canvas(sequence)
        return len(sequence.tail.token_ids) > self.config.score_pass_rows

    def _admit_beside(self, prefilling: list[Sequence], skipped: Collection[Sequence], works: list[Work]) -> None:
        """Admits requests with half of the rows that are left, before long prompts take all of them. The pages that
        these prompts still need are not given away."""
        kept_rows = self._rows_left // 2
        self._rows_left -= kept_rows
        self._promised_pages = sum(max(self._missing_pages(sequence), 0) for sequence in prefilling)
        self._admit_all(skipped, works)
        self._rows_left += kept_rows
        self._promised_pages = 0

    def _admit_all(self, skipped: Collection[Sequence], works: list[Work]) -> None:
        while self._may_admit() and self._admit():
            if self.running[-1] not in skipped:
                self._add_work(self.running[-1], works)

    def _row_budget(self) -> int:
        """Rows of the next forward: as many as a prompt may have if no request decodes, else as many as the measured
        times allow without delaying the others for long."""
        if all(sequence.is_prefilling for sequence in self.running):
            return self._prompt_rows
        cost = self.canvas_length.round_cost
        rows = cost.rows_within(PROMPT_MS) if cost is not None else 0
        longest = max((sequence.kv_len for sequence in self.running if sequence.is_prefilling), default=0)
        rows = int(rows / (1 + longest / DOUBLING_CONTEXT))
        return min(max(rows, self.config.max_rows), self._prompt_rows)

    def _may_admit(self) -> bool:
        """Whether enough requests wait, or have waited long enough, for another forward of prompts."""
        if self.slots is None or len(self.slots) < MANY_SLOTS or self._admitted_at == self._step:
            return True
        return self.num_waiting >= ADMITTED_TOGETHER or self._step - self._admitted_at >= ADMISSION_STEPS

    def _rotated(self) -> list[Sequence]:
        """The first one rotates, so a tight row budget starves none."""
        self._step += 1
        self._preempted.clear()
        stepped = [sequence for sequence in self.running if sequence.slot < 0]
        start = self._step % max(len(stepped), 1)
        return stepped[start:] + stepped[:start]

    def _add_work(self, sequence: Sequence, works: list[Work], *, is_first: bool = False) -> None:
        if sequence in self._preempted:
            return
        self._open_canvas(sequence)
        cost = self._shared.row_cost(sequence)
        budget = max(int(self._rows_left / cost), min(self._rows_left, self._shared.min_chunk_rows))
        work = cut_to_budget(sequence, budget, self._proposals_left, is_first=is_first or not works)
        if work is not None and self._has_pages(work, works):
            works.append(work)
            num_rows = work.num_rows
            self._rows_left -= min(int(num_rows * cost), max(self._rows_left, num_rows))
            self._proposals_left -= work.num_proposals

    def _take_slot(self, sequence: Sequence) -> bool:
        return self.slots is not None and self.slots.take(sequence)

    def _leave_slot(self, sequence: Sequence) -> None:
        if self.slots is not None and sequence.slot >= 0:
            self.slots.leave(sequence)

    def _open_canvas(self, sequence: Sequence) -> None:
        is_verify = sequence.request.params.decoder.name is DecoderName.VERIFY
        if is_verify and not sequence.is_verifying:
            # A draft and the row before it fit into one forward.
            sequence.draft_limit = max(self._shared.prompt_rows(self.config.max_rows) - 1, 1)
            joins_slot = self.slots is not None and self.slots.will_take(sequence)
            num_stepped = len(self.running) - (len(self.slots) if self.slots is not None else 0)
            limit = self.canvas_length.limit(num_stepped, has_backlog=len(self.waiting) > 0)
            sequence.canvas_limit = 1 if joins_slot else limit
        sequence.open_canvas()

    def _has_pages(self, work: Work, works: list[Work]) -> bool:
        """Whether `work` has the pages that it writes. Preempts younger sequences if needed."""
        sequence = work.sequence
        missing = self._pages_for(work.write_end) - len(sequence.pages)
        while missing > self.pool.num_free:
            victim = self._victim(sequence, works)
            if victim is None:
                return False
            self._preempt(victim)
            if victim is sequence:
                return False
        if missing > 0:
            sequence.pages += self.pool.allocate(missing) or []
        if self.config.spare_pages:
            self._take_spare_pages(work)
        return True

    def _take_spare_pages(self, work: Work) -> None:
        """Pages for forwards that a device runs ahead of the host, while pages are plentiful. Several at a time: each
        change of a page table is a transfer between two rounds."""
        spare, sequence = self.config.spare_pages, work.sequence
        missing = self._pages_for(work.write_end) + spare - len(sequence.pages)
        if spare // 4 < missing <= self.pool.num_free // 8:
            sequence.pages += self.pool.allocate(missing) or []

    def _victim(self, sequence: Sequence, works: list[Work]) -> Sequence | None:
        """The youngest sequence without work in this plan: of an interactive request first any batch request, then one
        that is not older than `sequence`."""
        busy = {work.sequence.id for work in works}
        if not sequence.request.is_batch and (batch := self._youngest_batch(busy)) is not None:
            return batch
        for candidate in reversed(self.running):
            if candidate.id not in busy:
                return candidate if len(self.running) > 1 else None
            if candidate is sequence:
                return None
        return None

    def _youngest_batch(self, busy: Collection[str] = ()) -> Sequence | None:
        youngest_first = reversed(self.running)
        return next((s for s in youngest_first if s.request.is_batch and s.id not in busy), None)

    def _preempt_batch(self) -> None:
        """Makes place for an interactive request that waits while all places are taken. Batch requests keep the share
        of the places that they have of the admissions."""
        if len(self.running) < self._max_running or not self.waiting.has_interactive:
            return
        num_batch = sum(sequence.request.is_batch for sequence in self.running)
        batch = self._youngest_batch() if num_batch > max(self._max_running // BATCH_EVERY, 1) else None
        if batch is not None:
            self._preempt(batch)

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self.publish(sequence)
        self._leave_slot(sequence)
        self.running.remove(sequence)
        self._preempted.add(sequence)
        self._release(sequence)
        self.waiting.put_back(sequence)

    def publish(self, sequence: Sequence) -> None:
        """Makes full pages of final text available to other sequences."""
        if sequence.final_len < (sequence.num_published + 1) * self.config.page_size:
            return
        hashes = prefix_hashes(sequence, self.config.page_size, sequence.final_len)
        for index in range(sequence.num_published, len(hashes)):
            self.pool.publish(sequence.pages[index], hashes[index])
        sequence.num_published = max(sequence.num_published, len(hashes))

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.pages)
        sequence.pages, sequence.kv_len, sequence.num_published = [], 0, 0

    def _admit(self) -> bool:
        """Moves one waiting sequence to `running`, if rows, slots and pages allow it."""
        if not len(self.waiting) or len(self.running) >= self._max_running:
            return False
        # Where rows attend to the whole text, texts that fill the row budget take turns: a new one need not wait.
        if self._rows_left < 2 and any(not sequence.dialect.is_full for sequence in self.running):
            return False
        overtaken: list[Sequence] = []
        held_tenants: set[str] = set()
        kept_pages = self._promised_pages
        for sequence in self.waiting.candidates(self._not_admissible):
            if sequence.request.tenant in held_tenants:
                continue
            if self._take_prefix(sequence, kept_pages):
                self._start(sequence)
                for earlier in overtaken:
                    earlier.num_overtaken += 1
                return True
            if sequence.num_overtaken >= MAX_OVERTAKEN_BY_OTHERS:
                return False
            is_preempted = sequence.has_run
            if is_preempted or sequence.num_overtaken >= MAX_OVERTAKEN:
                held_tenants.add(sequence.request.tenant)
                kept_pages = max(kept_pages, self.pool.num_free * 3 // 4)
            overtaken.append(sequence)
        return False

    def _start(self, sequence: Sequence) -> None:
        self._preempted.discard(sequence)
        self.waiting.admit(sequence, len(sequence.tokens) - sequence.kv_len)
        self.running.append(sequence)
        self._admitted_at = self._step

    def _take_prefix(self, sequence: Sequence, kept_pages: int) -> bool:
        """Shares cached pages. False, with no page held, if fewer than `kept_pages` would be free after the rest of the
        text."""
        page_size, num_tokens = self.config.page_size, len(sequence.tokens)
        self._open_canvas(sequence)
        context_end = num_tokens - sequence.tail.num_fixed
        pages = self.pool.share(prefix_hashes(sequence, page_size, min(num_tokens - 1, context_end)))
        needed = self._pages_for(sequence.text_end) - len(pages)
        if needed > max(self.pool.num_free - kept_pages, 0):
            self.pool.release(pages)
            return False
        sequence.pages, sequence.kv_len = pages, len(pages) * page_size
        sequence.num_published = len(pages)
        if not sequence.has_run:
            sequence.has_run = True
            if sequence.forwards == 0:  # a request that is continued keeps the figures of its first worker
                sequence.cached_tokens = sequence.kv_len
                sequence.queued_s = sequence.age_s
        return True

    def _missing_pages(self, sequence: Sequence) -> int:
        """Pages that a running sequence needs until it decodes."""
        return self._pages_for(sequence.text_end) - len(sequence.pages) if sequence.canvas is not None else 0

    def _pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.config.page_size)
