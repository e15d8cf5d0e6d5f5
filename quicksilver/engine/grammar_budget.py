"""Bounds the CPU time that slow grammars take from the step loop.

Each request's grammar may use `ALLOWANCE_S` per step. A request that used more is over budget and is skipped. The steps
of the other requests add a `SHARE` of their time to a common budget; when it covers the last overrun of a skipped
request, that request runs one step. So a slow grammar delays its own request and hardly any other. If all requests are
over budget, none is skipped. The text does not depend on any of this: sampling noise is a function of seed and
position.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TypeVar

from quicksilver.backends.sequence import Sequence
from quicksilver.core import TokenConstraint

# Seconds per step that a grammar may use; ordinary grammars use a tenth of it.
ALLOWANCE_S = 0.005
# Share of the time of all other steps that requests over budget may use together.
SHARE = 0.15

Result = TypeVar("Result")


class TimedConstraint:
    """A TokenConstraint that measures the time of its calls."""

    def __init__(self, inner: TokenConstraint, clock: Callable[[], float]) -> None:
        self._inner = inner
        self._clock = clock
        self._spent_s = 0.0
        self.total_s = 0.0

    def take_spent_s(self) -> float:
        """Seconds spent in the constraint since the last call of this method."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def forced(self, ahead: Seq[int] = ()) -> list[int]:
        return self._timed(lambda: self._inner.forced(ahead))

    def write_masks(self, ahead: Seq[int], out: memoryview) -> int:
        return self._timed(lambda: self._inner.write_masks(ahead, out))

    def legal_prefix(self, tokens: Seq[int]) -> int:
        return self._timed(lambda: self._inner.legal_prefix(tokens))

    def sweep(self, canvas: Seq[int | None]) -> list[int | None]:
        return self._timed(lambda: self._inner.sweep(canvas))

    def advance(self, tokens: Seq[int]) -> None:
        self._timed(lambda: self._inner.advance(tokens))

    def can_stop(self) -> bool:
        return self._timed(self._inner.can_stop)

    def must_stop(self) -> bool:
        return self._timed(self._inner.must_stop)

    def closing(self, room: int) -> list[int] | None:
        return self._timed(lambda: self._inner.closing(room))

    def is_over(self) -> bool:
        return self._timed(self._inner.is_over)

    def _timed(self, call: Callable[[], Result]) -> Result:
        start = self._clock()
        try:
            return call()
        finally:
            seconds = self._clock() - start
            self._spent_s += seconds
            self.total_s += seconds


class GrammarBudget:
    """The common budget of one engine. `begin_step` and `end_step` enclose every step."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self.clock = clock
        self._started = 0.0
        self._saved_s = 0.0
        self._turn = 0

    def begin_step(self, sequences: Seq[Sequence]) -> frozenset[Sequence]:
        """Starts the clock. Returns the running and waiting sequences that the step should skip."""
        self._started = self.clock()
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
