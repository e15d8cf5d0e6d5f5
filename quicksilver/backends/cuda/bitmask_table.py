"""The table in which grammars' bitmasks reach the fused head: one bit a token and row, set where the token may come.

Written on the host, where the automata are, and sent before the head runs. Most rows are free most of the time, so rows
whose bits are all set already are neither written nor sent again.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from quicksilver.backends.base import Work

ALL = -1
"""A word of which every token may come."""


class MaskTable:
    """Shared by heads of every size: they never run at the same time, and each reads the leading rows."""

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        shape = (num_rows, -(-vocab_size // 32))
        self._host = torch.full(shape, ALL, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._rows = self._host.numpy()
        self.bits = self._host.to(device, copy=True)
        """(rows, words) int32, on the device."""
        self._is_open = np.ones(num_rows, dtype=bool)
        """Rows whose bits are all set on the host."""
        self._unsent = (num_rows, 0)
        """First and last + 1 of the rows that the device does not have yet."""

    def write(self, works: Iterable[Work]) -> None:
        """The proposals of `works`, end to end. On the host; no copy may be under way. What a grammar raises is raised
        here, and leaves a table that can be written again."""
        at = 0
        for work in works:
            end = at + work.num_proposals
            self._open(at + self._write_masks(at, work), end)
            at = end

    def send(self) -> None:
        first, end = self._unsent
        if first < end:
            self.bits[first:end].copy_(self._host[first:end], non_blocking=True)
        self._unsent = (len(self._rows), 0)

    def _write_masks(self, at: int, work: Work) -> int:
        """As many rows as the automaton can follow: the first, and those behind known tokens."""
        constraint = work.sequence.constraint
        if constraint is None or work.tail is None:
            return 0
        end = at + len(work.tail.known) + 1
        self._change(at, end)
        self._is_open[at:end] = False
        self._rows[at:end] = 0
        return constraint.write_masks(work.tail.known, self._rows[at:end].data)

    def _open(self, at: int, end: int) -> None:
        closed = at + np.flatnonzero(~self._is_open[at:end])
        if len(closed):
            self._change(int(closed[0]), int(closed[-1]) + 1)
            self._rows[closed] = ALL
            self._is_open[closed] = True

    def _change(self, first: int, end: int) -> None:
        self._unsent = (min(first, self._unsent[0]), max(end, self._unsent[1]))
