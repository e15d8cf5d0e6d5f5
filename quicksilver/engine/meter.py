"""What grammars may cost the step loop: seconds beyond a small allowance are owed, and paid off by everybody's steps.

While anything is owed, requests whose last step was costly sit out, so a hostile grammar waits and its neighbours do
not. When all is paid, one of them runs a step. Where only costly requests run, nobody is kept waiting by them. Text
does not depend on any of this: noise is a function of position, never of what ran before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TypeVar

from quicksilver.core import TokenConstraint
from quicksilver.engine.sequence import Sequence, Work

ALLOWANCE_S = 0.005
"""What a request's grammar may take of a step for nothing; ordinary ones take a tenth of that."""
SHARE = 0.15
"""Part of the time of all steps that costly grammars may use up together."""

Answer = TypeVar("Answer")


class Metered:
    """A TokenConstraint that counts the seconds it takes."""

    def __init__(self, inner: TokenConstraint, clock: Callable[[], float]) -> None:
        self._inner = inner
        self._clock = clock
        self._spent_s = 0.0

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

    def _timed(self, ask: Callable[[], Answer]) -> Answer:
        start = self._clock()
        try:
            return ask()
        finally:
            self._spent_s += self._clock() - start


class Meter:
    """The common account of one engine. `begin` and `end` bracket every step."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._started = 0.0
        self._owed_s = 0.0
        self._turn = 0

    def begin(self) -> None:
        self._started = self.clock()

    def end(self, works: Seq[Work]) -> None:
        excess_s = sum(self._excess(work.sequence) for work in works)
        step_s = self.clock() - self._started - excess_s
        self._owed_s = max(0.0, self._owed_s + excess_s - SHARE * step_s)

    def resting(self, running: Seq[Sequence]) -> frozenset[Sequence]:
        """Who sits out the next step."""
        costly = [sequence for sequence in running if sequence.is_costly]
        if len(costly) == len(running):
            return frozenset()
        if costly and not self._owed_s:
            self._turn += 1
            del costly[self._turn % len(costly)]
        return frozenset(costly)

    def _excess(self, sequence: Sequence) -> float:
        if not isinstance(sequence.constraint, Metered):
            return 0.0
        excess_s = max(0.0, sequence.constraint.take_spent() - ALLOWANCE_S)
        sequence.is_costly = excess_s > 0
        return excess_s
