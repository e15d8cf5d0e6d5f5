"""What grammars may cost the step loop: a small allowance each, and beyond it a share of everybody's time, saved up.

A request whose grammar took more than its allowance is costly and sits out; the steps of the others save up a share of
their time, and when that covers what it took last, it runs one step. So a hostile grammar waits and its neighbours do
not. Where only costly requests run, nobody is kept waiting by them and they run on. Text does not depend on any of
this: noise is a function of position, never of what ran before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TypeVar

from quicksilver.backends.base import Work
from quicksilver.backends.sequence import Sequence
from quicksilver.core import TokenConstraint

ALLOWANCE_S = 0.005
"""What a request's grammar may take of a step for nothing; ordinary ones take a tenth of that."""
SHARE = 0.15
"""Part of the time of all other steps that costly grammars may use up together."""

Answer = TypeVar("Answer")


class Metered:
    """A TokenConstraint that counts the seconds it takes."""

    def __init__(self, inner: TokenConstraint, clock: Callable[[], float]) -> None:
        self._inner = inner
        self._clock = clock
        self._spent_s = 0.0
        self.total_s = 0.0
        """Seconds since it was made."""

    def take_spent(self) -> float:
        """Seconds since this was asked last."""
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

    def _timed(self, ask: Callable[[], Answer]) -> Answer:
        start = self._clock()
        try:
            return ask()
        finally:
            seconds = self._clock() - start
            self._spent_s += seconds
            self.total_s += seconds


class Meter:
    """The common account of one engine. `begin` and `end` bracket every step."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self.clock = clock
        self._started = 0.0
        self._saved_s = 0.0
        self._turn = 0

    def begin(self) -> None:
        self._started = self.clock()

    def end(self, works: Seq[Work]) -> None:
        """Notes what the grammars of this step took, and saves up for the next costly one."""
        excess_s = unforeseen_s = 0.0
        for work in works:
            foreseen_s, work.sequence.excess_s = work.sequence.excess_s, excess_of(work.sequence.constraint)
            excess_s += work.sequence.excess_s
            unforeseen_s += work.sequence.excess_s - foreseen_s
        step_s = self.clock() - self._started - excess_s
        self._saved_s += SHARE * step_s - unforeseen_s

    def resting(self, sequences: Seq[Sequence]) -> frozenset[Sequence]:
        """Who of all that run or wait sits out the next step."""
        costly = [sequence for sequence in sequences if sequence.excess_s > 0]
        if len(costly) in (0, len(sequences)):
            self._saved_s = 0.0
            return frozenset()
        self._turn += 1
        chosen = costly[self._turn % len(costly)]
        if self._saved_s < chosen.excess_s:
            return frozenset(costly)
        self._saved_s -= chosen.excess_s
        return frozenset(costly) - {chosen}


def excess_of(constraint: TokenConstraint | None) -> float:
    """Seconds beyond the allowance since this was asked last."""
    return max(0.0, constraint.take_spent() - ALLOWANCE_S) if isinstance(constraint, Metered) else 0.0
