"""How much of a step a request may use: rows of the forward, positions of its canvas, and time for its grammar.

Rows. A request waits for the forward that runs when it arrives, and then for everything that runs beside its own rows.
On a CPU the time of a forward grows with its rows and with the cached tokens that they attend to. So three rules hold:

- While several requests are open, a row with a long context counts as several rows.
- While several tenants are active, prompts and scoring requests get as many rows as `EngineConfig.shared_step_ms`
  allows, by the measured time of recent forwards. They take turns, and the first of a step always runs.
- A prompt or scoring request that needs several forwards waits in a step in which a short request of another tenant
  starts, but never in two steps in a row.

Canvas. Its length changes the number of tokens per round, never the tokens. It depends on the measured cost of
forwards, on the acceptance rate of recent drafts and on the number of running requests. Without measured costs,
canvases are shortened while requests wait: a long draft that is rejected costs rows that another request could use.

Grammar. Each request's grammar may use `ALLOWANCE_S` per step. A request that used more is over budget and is skipped.
The steps of the other requests add a `GRAMMAR_SHARE` of their time to a common budget; when it covers the last overrun
of a skipped request, that request runs one step. So a slow grammar delays its own request and hardly any other. If all
requests are over budget, none is skipped. The text does not depend on any of this: sampling noise is a function of seed
and position.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

from quicksilver.backends.base import Sequence, Work
from quicksilver.backends.round_cost import MAX_DRAFT_LEN, RoundCost
from quicksilver.core import DecoderName, MaskGroup, MaskTask, TokenConstraint
from quicksilver.diffusion.score import Scorer
from quicksilver.engine.admission import ActiveTenants, open_rows
from quicksilver.engine.config import EngineConfig

# Steps after the last one with several open requests, for which a row with a long context still counts as several.
SHARED_STEPS = 256
# Rows of a forward that prompts get in any case.
MIN_ROWS = 8
# Fewest rows of one prompt, however long its context is: with one active tenant, and with several.
MIN_CHUNK_ROWS, MIN_SHARED_CHUNK_ROWS = 4, 1
# Weight of the newest forward in the measured time of a row.
NEWEST_WEIGHT = 0.3
# Acceptance rate assumed before any draft is verified, and the number of verified tokens with the same weight.
PRIOR_RATE, PRIOR_WEIGHT = 0.75, 4
# Factor by which a step reduces the weight of older verifications; 0.5 after 100 steps.
DECAY = 0.993
# Decay of the acceptance rates in a step of several requests without drafts. Nothing newer replaces these rates, and a
# faster return to the prior would start to draft again and again under load.
DECAY_WITHOUT_DRAFTS = 0.999
# Share of the rows of a forward for all canvases together, while requests wait and costs are not measured.
BACKLOG_SHARE = 0.25
# Seconds per step that a grammar may use; ordinary grammars use a tenth of it.
ALLOWANCE_S = 0.005
# Share of the time of all other steps that requests over budget may use together.
GRAMMAR_SHARE = 0.15
# Seconds per row from which masks are computed together with those of other requests. A parallel call takes about as
# long as this; masks inside JSON strings take a microsecond.
GROUPED_ROW_S = 50e-6
# See `ProcessorClock`.
CLOCK_ERROR_S = 0.0005
# Calls for a group after which a constraint computes its masks by itself again, so that its time is known.
MAX_GROUPED = 15

Result = TypeVar("Result")


class SharedSteps:
    """`begin` before a step is planned, `end` after it; between them the limits for this step."""

    def __init__(self, config: EngineConfig, tenants: ActiveTenants, clock: Callable[[], float]) -> None:
        self._config, self._tenants, self._clock = config, tenants, clock
        self._steps_since_shared = SHARED_STEPS
        self._has_paused = False  # in the last step
        self._row_s = 0.0  # measured seconds per row without context
        self._began = 0.0
        self.is_limited = False  # whether the time of this forward is limited

    def begin(self, running: Seq[Sequence], num_waiting: int) -> None:
        for tenant in {sequence.request.tenant for sequence in running}:
            self._tenants.note(tenant)
        num_open = len(running) + num_waiting
        self._began = self._clock()
        self.is_limited = bool(self._config.shared_step_ms) and self._tenants.are_several
        self._steps_since_shared = 0 if num_open > 1 else self._steps_since_shared + 1

    def end(self, works: Seq[Work]) -> None:
        """Learns from the time since `begin`."""
        rows = sum(work.num_rows * self._cost(work.sequence) for work in works)
        if rows >= MIN_ROWS:
            row_s = (self._clock() - self._began) / rows
            self._row_s += (NEWEST_WEIGHT if self._row_s else 1.0) * (row_s - self._row_s)

    @property
    def min_chunk_rows(self) -> int:
        return MIN_SHARED_CHUNK_ROWS if self.is_limited else MIN_CHUNK_ROWS

    def is_bulk(self, sequence: Sequence) -> bool:
        """Whether the sequence comes after those that decode, with the rows that they leave."""
        return sequence.is_prefilling or (self.is_limited and isinstance(sequence.decoder, Scorer))

    def prompt_rows(self, row_budget: int, decoding: Seq[Work] = ()) -> int:
        """Rows that prompts may have, of `row_budget`, in a step with the work of these decoding sequences."""
        if not (self._row_s and self.is_limited):
            return row_budget
        rows = int(self._config.shared_step_ms / 1000 / self._row_s) - sum(work.num_rows for work in decoding)
        return min(max(rows, MIN_ROWS), row_budget)

    def row_cost(self, sequence: Sequence) -> float:
        """The time of a prompt's row, in rows without context."""
        is_counted = sequence.is_prefilling and self._steps_since_shared < SHARED_STEPS
        return self._cost(sequence) if is_counted else 1

    def paused(self, running: Seq[Sequence], candidates: Iterable[Sequence]) -> list[Sequence]:
        """Running sequences without rows in this step, because a short request of another tenant starts."""
        if not self.is_limited or self._has_paused:
            self._has_paused = False
            return []
        starting = [one for one in running if one.is_prefilling] + list(candidates)
        short = {one.request.tenant for one in starting if open_rows(one) <= self._config.max_rows}
        paused = [one for one in running if self._is_long(one) and short - {one.request.tenant}]
        self._has_paused = bool(paused)
        return paused

    def _is_long(self, sequence: Sequence) -> bool:
        is_prompt = sequence.is_prefilling or isinstance(sequence.decoder, Scorer)
        return is_prompt and open_rows(sequence) > self._config.max_rows

    def _cost(self, sequence: Sequence) -> float:
        doubling = self._config.doubling_context
        return 1 + sequence.kv_len / doubling if doubling else 1


class AcceptanceHistory:
    """Acceptance of recently drafted tokens of all requests, by their index in the draft."""

    def __init__(self) -> None:
        self._verified = [0.0] * MAX_DRAFT_LEN
        self._accepted = [0.0] * MAX_DRAFT_LEN

    def add(self, num_accepted: int, num_drafted: int) -> None:
        """One verification. Tokens after the first rejected one count as not verified."""
        for i in range(min(num_accepted + 1, num_drafted, MAX_DRAFT_LEN)):
            self._verified[i] += 1
            self._accepted[i] += i < num_accepted

    def decay(self, factor: float = DECAY) -> None:
        self._verified = [count * factor for count in self._verified]
        self._accepted = [count * factor for count in self._accepted]

    def prefix_acceptance(self) -> list[float]:
        """The probability that the first token of a draft is accepted, the first two, the first three and so on. With
        few verifications an index is assumed to have the rate of the index before it."""
        rate, product, found = PRIOR_RATE, 1.0, []
        for verified, accepted in zip(self._verified, self._accepted, strict=True):
            rate = (accepted + PRIOR_WEIGHT * rate) / (verified + PRIOR_WEIGHT)
            product *= rate
            found.append(product)
        return found


class CanvasLength:
    """`begin_step` once per step, then `limit` for each request. `observe` reports every verified draft."""

    def __init__(self, canvas_rows: int, round_cost: RoundCost | None, max_rows: int = 512) -> None:
        self.canvas_rows = canvas_rows
        self.max_rows = max_rows
        self.round_cost = round_cost
        self.history = AcceptanceHistory()
        self._is_verify_step = False
        self._has_verified = False  # since the last step
        self._num_grammars = 0  # running requests with a grammar
        self._best_len = 0
        self._best_for = -1  # number of running requests that `_best_len` was computed for

    def begin_step(self, running: Seq[Sequence]) -> None:
        if self.round_cost is None:
            return
        self.history.decay(DECAY if self._has_verified or len(running) <= 1 else DECAY_WITHOUT_DRAFTS)
        self._has_verified = False
        self._is_verify_step = _most_verify(running)
        self._num_grammars = sum(sequence.constraint is not None for sequence in running)
        self._best_len, self._best_for = self._best_len if running else 0, -1

    def observe(self, num_accepted: int, num_drafted: int) -> None:
        self.history.add(num_accepted, num_drafted)
        self._has_verified = True

    def limit(self, num_running: int, *, has_backlog: bool = False) -> int:
        """The longest canvas that a request may open now; 0 is no limit."""
        # In a verify step a request without a draft takes a plain step, and drafts together with the others in the
        # next one. So every second forward has no canvas rows, which makes it cheaper.
        limits = [1] if self._is_verify_step and num_running > 1 else []
        if self.round_cost is not None:
            limits.append(self._best(self.round_cost, num_running))
        elif has_backlog:
            limits.append(max(int(BACKLOG_SHARE * self.max_rows) // max(num_running, 1), 1))
        if self.canvas_rows:
            limits.append(max(self.canvas_rows // max(num_running, 1), 1))
        return min(limits, default=0)

    def _best(self, round_cost: RoundCost, num_running: int) -> int:
        """Computed once per step for each number of running requests."""
        if self._best_for != num_running:
            self._best_for = num_running
            acceptance = self.history.prefix_acceptance()
            self._best_len = round_cost.canvas_len(num_running, acceptance, self._best_len, self._num_grammars)
        return self._best_len


def _most_verify(running: Seq[Sequence]) -> bool:
    """Whether at least as many requests have a draft to verify as would draft now."""
    drafting = verifying = 0
    for sequence in running:
        if sequence.request.params.decoder.name is DecoderName.VERIFY and not sequence.is_prefilling:
            has_draft = sequence.canvas is not None and sequence.canvas.is_draft
            verifying += has_draft
            drafting += not has_draft
    return verifying >= max(drafting, 1)


def cut_to_budget(sequence: Sequence, budget: int, num_proposals: int, *, is_first: bool) -> Work | None:
    """As much of the sequence's next forward as fits `budget` rows and `num_proposals`. The end of the context runs
    only together with the whole tail. A tail that exceeds the budget runs in a forward of its own. Chunks of a
    block-causal context end with a block; a full context runs at once."""
    start, tail, multiple = sequence.kv_len, sequence.tail, sequence.dialect.page_multiple
    context_end = len(sequence.tokens) - tail.num_fixed
    context = context_end - start
    fits = context + len(tail.token_ids) <= budget and tail.num_proposals <= num_proposals
    is_full = sequence.dialect.is_full
    if fits or (is_first and (is_full or context <= multiple)):
        return Work(sequence, start, context_end, tail)
    if is_full:
        return None
    end = start + min(context - 1, max(budget, multiple) if is_first else budget)
    end -= end % multiple
    return Work(sequence, start, end, None) if end > start else None


class ProcessorClock(threading.local):
    """Processor time of the calling thread, at most `CLOCK_ERROR_S` ahead of it.

    Reading that time is a system call, and a constraint is timed about ten times per request and step. The wall clock
    is cheaper to read and never slower, so it counts from one reading to the next.
    """

    def __init__(self) -> None:
        self._read_at = -inf  # on the wall clock
        self._processor_s = self._last_s = 0.0

    def __call__(self) -> float:
        passed_s = time.perf_counter() - self._read_at
        if passed_s > CLOCK_ERROR_S:
            self._processor_s, self._read_at, passed_s = time.thread_time(), time.perf_counter(), 0.0
        now = self._processor_s + passed_s
        if now > self._last_s:  # else the wall clock was ahead before the last reading
            self._last_s = now
        return self._last_s


class TimedConstraint:
    """A TokenConstraint that measures the time of its calls, apart from those that only look at its state."""

    def __init__(self, inner: TokenConstraint, clock: Callable[[], float]) -> None:
        self.inner = inner
        self._clock = clock
        self._spent_s = 0.0
        self.total_s = 0.0
        # Seconds per row of the last masks that the constraint computed by itself, and calls for its group since then.
        self._row_s = 0.0
        self.num_grouped = 0

    @property
    def group(self) -> MaskGroup | None:
        """Only expensive masks are worth a parallel call, and masks over the allowance are charged to their request."""
        group = self.inner.group
        if group is None or self.num_grouped >= MAX_GROUPED or not GROUPED_ROW_S <= self._row_s <= ALLOWANCE_S:
            return None
        return TimedGroup(group)

    def add_spent(self, seconds: float) -> None:
        self._spent_s += seconds
        self.total_s += seconds

    def take_spent_s(self) -> float:
        """Seconds spent in the constraint since the last call of this method."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def forced(self, ahead: Seq[int] = ()) -> list[int]:
        return self._timed(self.inner.forced, ahead)

    def write_masks(self, ahead: Seq[int], out: memoryview) -> int:
        before_s = self.total_s
        num_rows = self._timed(self.inner.write_masks, ahead, out)
        self._row_s, self.num_grouped = (self.total_s - before_s) / max(num_rows, 1), 0
        return num_rows

    def legal_prefix(self, tokens: Seq[int]) -> int:
        return self._timed(self.inner.legal_prefix, tokens)

    def sweep(self, canvas: Seq[int | None]) -> list[int | None]:
        return self._timed(self.inner.sweep, canvas)

    def advance(self, tokens: Seq[int]) -> None:
        self._timed(self.inner.advance, tokens)

    def can_stop(self) -> bool:
        return self._timed(self.inner.can_stop)

    def must_stop(self) -> bool:
        return self.inner.must_stop()

    def closing(self, room: int) -> list[int] | None:
        return self._timed(self.inner.closing, room)

    def is_over(self) -> bool:
        return self.inner.is_over()

    def _timed(self, call: Callable[..., Result], *arguments: object) -> Result:
        start = self._clock()
        try:
            return call(*arguments)
        finally:
            self.add_spent(self._clock() - start)


@dataclass(frozen=True, slots=True)
class TimedGroup:
    """Masks of several TimedConstraints in one call.

    The time of each is not known: it is measured as a whole, on the wall clock, because other threads take part. A call
    that took longer than one allowance counts as an overrun of none of them. In the next step, as after `MAX_GROUPED`
    calls, its constraints compute their masks one by one.
    """

    inner: MaskGroup
    clock: Callable[[], float] = field(default=time.perf_counter, compare=False)

    def write_masks(self, tasks: Seq[MaskTask[TimedConstraint]]) -> list[int]:
        start = self.clock()
        num_rows = self.inner.write_masks([(constraint.inner, ahead, out) for constraint, ahead, out in tasks])
        seconds = self.clock() - start
        for constraint, _, _ in tasks:
            constraint.add_spent(min(seconds / len(tasks), ALLOWANCE_S))
            constraint.num_grouped = MAX_GROUPED if seconds > ALLOWANCE_S else constraint.num_grouped + 1
        return num_rows


class GrammarBudget:
    """The common budget of one engine. `begin_step` and `end_step` enclose every step."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.clock = clock or ProcessorClock()
        self._started = 0.0
        self._saved_s = 0.0
        self._has_grammars = False
        self._turn = 0

    def begin_step(self, sequences: Seq[Sequence]) -> frozenset[Sequence]:
        """Starts the clock. Returns the running and waiting sequences that the step should skip."""
        self._has_grammars = any(one.constraint is not None or one.overrun_s > 0 for one in sequences)
        self._started = self.clock() if self._has_grammars else 0.0
        over = [sequence for sequence in sequences if sequence.overrun_s > 0]
        if len(over) in (0, len(sequences)):
            self._saved_s = 0.0
            return frozenset()
        self._turn += 1
        chosen = over[self._turn % len(over)]
        if self._saved_s < chosen.overrun_s:
            return frozenset(over)
        self._saved_s -= chosen.overrun_s
        return frozenset(over) - {chosen}

    def end_step(self, sequences: Seq[Sequence]) -> None:
        """Records the overrun of every sequence that ran, and adds a share of the step's own time to the budget."""
        if not self._has_grammars:
            return
        overrun_s = unpaid_s = 0.0
        for sequence in sequences:
            paid_s, sequence.overrun_s = sequence.overrun_s, take_overrun_s(sequence.constraint)
            overrun_s += sequence.overrun_s
            unpaid_s += sequence.overrun_s - paid_s
        step_s = self.clock() - self._started - overrun_s
        self._saved_s += GRAMMAR_SHARE * step_s - unpaid_s


def take_overrun_s(constraint: TokenConstraint | None) -> float:
    """Seconds beyond the allowance since the last call."""
    return max(0.0, constraint.take_spent_s() - ALLOWANCE_S) if isinstance(constraint, TimedConstraint) else 0.0
