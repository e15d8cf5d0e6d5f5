"""Builds the rows of one forward from the works of a step.

Each sequence has its context rows first (causal, written to its pages), then the rows of its tail.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from quicksilver.backends.base import Work
from quicksilver.backends.sequence import Sequence
from quicksilver.diffusion.decoder import Tail
from quicksilver.model.attention import RowPlan, Segment


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of a forward, and which of them propose tokens."""

    token_ids: Tensor  # (rows,)
    mask_index: Tensor  # (rows,) canvas index of a mask embedding, -1 for a token
    plan: RowPlan
    proposing: Tensor  # rows whose hidden state becomes logits, in order of work
    has_canvas: bool
    has_prompt: bool = False  # some sequence has more than one context row

    def to(self, device: torch.device | str) -> Batch:
        return Batch(
            self.token_ids.to(device),
            self.mask_index.to(device),
            self.plan.to(device),
            self.proposing.to(device),
            self.has_canvas,
            self.has_prompt,
        )


@dataclass(slots=True)
class _Columns:
    """One list per row attribute; converted to tensors at the end."""

    token_ids: list[int] = field(default_factory=list)
    mask_index: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    prefix_end: list[int] = field(default_factory=list)
    span_start: list[int] = field(default_factory=list)
    span_end: list[int] = field(default_factory=list)
    is_canvas: list[bool] = field(default_factory=list)

    def add(self, token_ids: Seq[int], start: int, slots: Seq[int]) -> None:
        """Adds causal rows from position `start` on, with empty spans and no mask embeddings."""
        count = len(token_ids)
        self.token_ids += token_ids
        self.mask_index += [-1] * count
        self.positions += range(start, start + count)
        self.slots += slots
        self.prefix_end += range(start + 1, start + 1 + count)
        self.span_start += [0] * count
        self.span_end += [0] * count
        self.is_canvas += [False] * count

    def add_unwritten(self, token_ids: Seq[int], start: int, span_end: Seq[int]) -> None:
        """Adds rows that write no KV. Each sees all positions before `start`, and of these rows those before its entry
        in `span_end`."""
        first, count = len(self.token_ids), len(token_ids)
        self.add(token_ids, start, [-1] * count)
        self.prefix_end[first:] = [start] * count
        self.span_start[first:] = [first] * count
        self.span_end[first:] = [first + end for end in span_end]


def build_batch(works: Seq[Work], page_size: int) -> Batch:
    columns, segments, proposing = _Columns(), [], list[int]()
    for work in works:
        start = len(columns.token_ids)
        _add_context(columns, work, page_size)
        if work.tail is not None:
            first = len(columns.token_ids) - 1
            if work.tail.token_ids:
                _add_tail(columns, work, work.tail, page_size)
            proposing.extend(range(first, len(columns.token_ids)))
        segments.append(Segment(start, len(columns.token_ids), _page_ids(work.sequence)))
    has_prompt = any(work.end - work.start > 1 for work in works)
    return _to_tensors(columns, segments, proposing, has_prompt)


def _page_ids(sequence: Sequence) -> Tensor:
    """Cached between forwards. The list of pages only grows, or is replaced by another list."""
    known = sequence.page_ids
    if known is None or known[0] is not sequence.pages or len(known[1]) != len(sequence.pages):
        known = sequence.page_ids = (sequence.pages, _tensor(sequence.pages))
    return known[1]


def _add_context(columns: _Columns, work: Work, page_size: int) -> None:
    slots = _slots(work.sequence.pages, work.start, work.end, page_size)
    columns.add(work.sequence.tokens[work.start : work.end], work.start, slots)


def _slots(pages: Seq[int], start: int, end: int, page_size: int) -> list[int]:
    """KV slots of positions [start, end)."""
    first, slots = start // page_size, list[int]()
    for page in pages[first : -(-end // page_size)]:
        slots += range(page * page_size, (page + 1) * page_size)
    return slots[start - first * page_size : end - first * page_size]


def _add_tail(columns: _Columns, work: Work, tail: Tail, page_size: int) -> None:
    if tail.branches:
        _add_branches(columns, work.end, tail)
    elif tail.is_causal:
        _add_drafted(columns, work, tail, page_size)
    else:
        _add_canvas(columns, work.end, tail)


def _add_drafted(columns: _Columns, work: Work, tail: Tail, page_size: int) -> None:
    """Drafted tokens to verify: causal rows that write KV. Slots of rejected tokens are overwritten later."""
    slots = _slots(work.sequence.pages, work.end, work.end + len(tail.token_ids), page_size)
    columns.add(tail.token_ids, work.end, slots)


def _add_canvas(columns: _Columns, num_committed: int, tail: Tail) -> None:
    """Canvas rows see all committed positions and each other, and write no KV."""
    first, count = len(columns.token_ids), len(tail.token_ids)
    columns.add_unwritten(tail.token_ids, num_committed, [count] * count)
    columns.mask_index[first:] = [index if is_masked else -1 for index, is_masked in enumerate(tail.is_masked)]
    columns.is_canvas[first:] = [True] * count


def _add_branches(columns: _Columns, num_committed: int, tail: Tail) -> None:
    """Independent continuations of one prefix: each row sees the prefix and its own branch up to itself."""
    start = 0
    for length in tail.branches:
        columns.add_unwritten(tail.token_ids[start : start + length], num_committed, range(1, length + 1))
        start += length


def _to_tensors(columns: _Columns, segments: list[Segment], proposing: list[int], has_prompt: bool) -> Batch:
    plan = RowPlan(
        positions=_tensor(columns.positions),
        slots=_tensor(columns.slots),
        is_canvas=torch.from_numpy(np.array(columns.is_canvas, dtype=np.bool_)),
        prefix_end=_tensor(columns.prefix_end),
        span_start=_tensor(columns.span_start),
        span_end=_tensor(columns.span_end),
        segments=segments,
    )
    token_ids, mask_index = _tensor(columns.token_ids), _tensor(columns.mask_index)
    return Batch(token_ids, mask_index, plan, _tensor(proposing), any(columns.is_canvas), has_prompt)


def _tensor(values: list[int]) -> Tensor:
    """Through numpy, which converts lists several times faster than torch."""
    return torch.from_numpy(np.array(values, dtype=np.int64))
