"""Bounds the CPU time that slow grammars take from the step loop.

Each request's grammar may use `ALLOWANCE_S` per step. A request that used more is over budget and is skipped. The steps
of the other requests add a `SHARE` of their time to a common budget; when it covers the last overrun of a skipped
request, that request runs one step. So a slow grammar delays its own request and hardly any other. If all requests are
over budget, none is skipped. The text does not depend on any of this: sampling noise is a function of seed and
position.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

from quicksilver.backends.base import Sequence
from quicksilver.core import MaskGroup, MaskTask, TokenConstraint

# Seconds per step that a grammar may use; ordinary grammars use a tenth of it.
ALLOWANCE_S = 0.005
# Share of the time of all other steps that requests over budget may use together.
SHARE = 0.15
# Seconds per row from which masks are computed together with those of other requests. A parallel call takes about as
# long as this; masks inside JSON strings take a microsecond.
GROUPED_ROW_S = 50e-6
# See `ProcessorClock`.
CLOCK_ERROR_S = 0.0005
# Calls for a group after which a constraint computes its masks by itself again, so that its time is known.
MAX_GROUPED = 15

Result = TypeVar("Result")


class ProcessorClock(threading.local):
    """Processor time of the calling thread, at most `CLOCK_ERROR_S` ahead of it.

    Reading that time is a system call, and a constraint is timed about ten times per request and step. The wall clock
    is cheaper to read and never slower, so it counts from one reading to the next.
    """

    def __init__(self) -> None:
        self._read_at = -inf  # on the wall clock
        self._processor_s = self._last_s = 0.0

    def __call__(self) -> float:
        now = time.perf_counter()
        if now - self._read_at > CLOCK_ERROR_S:
            self._processor_s = time.thread_time()
            self._read_at = now = time.perf_counter()
        self._last_s = max(self._last_s, self._processor_s + now - self._read_at)
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
        self._saved_s += SHARE * step_s - unpaid_s


def take_overrun_s(constraint: TokenConstraint | None) -> float:
    """Seconds beyond the allowance since the last call."""
    return max(0.0, constraint.take_spent_s() - ALLOWANCE_S) if isinstance(constraint, TimedConstraint) else 0.0
