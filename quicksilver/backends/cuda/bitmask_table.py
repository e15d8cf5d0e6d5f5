"""The table that carries grammar bitmasks to the fused head: one bit per token and row, set where the token is allowed.

Written on the host, where the grammar automata run, and sent before the head runs. Most rows are unconstrained most of
the time, so rows whose bits are all set are neither written nor sent again.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from quicksilver.backends.base import Work
from quicksilver.backends.batch import write_masks
from quicksilver.core import MaskTask, TokenConstraint

# A word whose 32 tokens are all allowed.
ALL_ALLOWED = -1


class BitmaskTable:
    """Shared by heads of all bucket sizes. They never run at the same time, and each reads the leading rows."""

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        shape = (num_rows, -(-vocab_size // 32))
        self._host = torch.full(shape, ALL_ALLOWED, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._rows = self._host.numpy()
        # (rows, words) int32, on the device.
        self.bits = self._host.to(device, copy=True)
        # Rows whose bits are all set on the host.
        self._is_open = np.ones(num_rows, dtype=bool)
        # First row and end of the rows that have not been sent.
        self._unsent = (num_rows, 0)

    def write(self, works: Iterable[Work]) -> None:
        """Write the masks of the proposing rows of `works`, in order. On the host; no copy may be in progress. An
        exception of a grammar propagates and leaves a table that can be written again."""
        start, tasks, spans = 0, list[MaskTask[TokenConstraint]](), list[tuple[int, int]]()
        for work in works:
            end = start + work.num_proposals
            constraint, tail = work.sequence.constraint, work.tail
            if constraint is None or tail is None:
                self._open(start, end)
            else:
                known = tail.known[: work.num_proposals - 1]  # a block may have no mask left
                tasks.append((constraint, known, self._cleared(start, start + len(known) + 1)))
                spans.append((start, end))
            start = end
        for (first, end), num_masked in zip(spans, write_masks(tasks), strict=True):
            self._open(first + num_masked, end)

    def send(self) -> None:
        """Queue the copy of the changed rows."""
        first, end = self._unsent
        if first < end:
            self.bits[first:end].copy_(self._host[first:end], non_blocking=True)
        self._unsent = (len(self._rows), 0)

    def _cleared(self, start: int, end: int) -> memoryview:
        """Rows for masks: the first row of a request, and those after known tokens."""
        self._mark_changed(start, end)
        self._is_open[start:end] = False
        self._rows[start:end] = 0
        return self._rows[start:end].data

    def _open(self, start: int, end: int) -> None:
        if start == end:
            return
        closed = start + np.flatnonzero(~self._is_open[start:end])
        if len(closed):
            self._mark_changed(int(closed[0]), int(closed[-1]) + 1)
            self._rows[closed] = ALL_ALLOWED
            self._is_open[closed] = True

    def _mark_changed(self, first: int, end: int) -> None:
        self._unsent = (min(first, self._unsent[0]), max(end, self._unsent[1]))
