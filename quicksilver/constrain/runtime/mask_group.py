"""Masks of the grammars of several requests, computed in parallel.

The requests advance together, one row at a time. For each row the automata that allow more than one token compute
their masks in one call, on several threads and without the GIL. Rows equal those of `GrammarConstraint.write_masks`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from llguidance import LLExecutor

from quicksilver.constrain.runtime.digits import Bits
from quicksilver.constrain.runtime.lookahead import Lookahead
from quicksilver.constrain.runtime.tokens import Tokens
from quicksilver.core import MaskTask

if TYPE_CHECKING:
    from quicksilver.constrain.runtime.matcher import GrammarConstraint

MAX_THREADS = 8


@dataclass(slots=True)
class _Walk:
    lookahead: Lookahead
    ahead: Sequence[int]
    rows: Bits
    num_rows: int = 0

    @property
    def next_row(self) -> Bits:
        row: Bits = self.rows[self.num_rows]
        return row

    def goes_on(self) -> bool:
        """Whether another row follows those that are written."""
        return self.num_rows < len(self.rows) and self.lookahead.goes_on(self.num_rows - 1, self.ahead)


class LlguidanceMasks:
    """A `core.MaskGroup` of all constraints over one tokenizer."""

    def __init__(self, tokens: Tokens, num_threads: int) -> None:
        self._tokens = tokens
        self._num_threads = num_threads

    @classmethod
    def for_machine(cls, tokens: Tokens) -> LlguidanceMasks | None:
        """Leaves one core to the engine's thread and one to the event loop. None if less than two are left."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        num_threads = min(cores - 2, MAX_THREADS)
        return cls(tokens, num_threads) if num_threads > 1 else None

    def write_masks(self, tasks: Sequence[MaskTask[GrammarConstraint]]) -> list[int]:
        walks = [self._walk(*task) for task in tasks]
        active = [walk for walk in walks if not walk.num_rows]
        while active:
            self._write_rows(active)
            active = [walk for walk in active if walk.goes_on()]
        for constraint, _, _ in tasks:
            constraint.require_sound()
        return [walk.num_rows for walk in walks]

    def _walk(self, constraint: GrammarConstraint, ahead: Sequence[int], out: memoryview) -> _Walk:
        rows = np.asarray(out).reshape(-1, self._tokens.num_words)
        if constraint.has_ended:
            rows[0] = self._tokens.end_bits
            return _Walk(constraint.lookahead, ahead, rows, num_rows=1)
        return _Walk(constraint.lookahead, ahead, rows)

    def _write_rows(self, walks: Sequence[_Walk]) -> None:
        """Writes the next row of every walk."""
        open_walks = [walk for walk in walks if not walk.lookahead.write_known(walk.num_rows, walk.next_row)]
        if len(open_walks) < 2:
            for walk in open_walks:
                self._tokens.write_allowed(walk.lookahead.matcher, walk.next_row)
        else:
            matchers = [walk.lookahead.matcher for walk in open_walks]
            for walk, bits in zip(open_walks, self._tokens.allowed_rows(matchers, self._executor), strict=True):
                walk.next_row[:] = bits
        for walk in open_walks:
            walk.lookahead.keep_short(walk.num_rows, walk.next_row)
        for walk in walks:
            walk.num_rows += 1

    @cached_property
    def _executor(self) -> LLExecutor:
        """Created at the first use, because it starts threads."""
        return LLExecutor(self._num_threads)
