"""Work of one step -> the rows of one forward. Gathered afresh each step; the state never *is* the input.

Every sequence contributes its context rows (causal, written to its pages) and then its tail, laid end to end.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
from torch import Tensor

from quicksilver.diffusion.decoder import Tail
from quicksilver.engine.sequence import Sequence, Work
from quicksilver.model.attention import RowPlan, Segment


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of a forward, and which of them are asked for proposals."""

    token_ids: Tensor  # (rows,)
    mask_index: Tensor  # (rows,) canvas index of a mask embedding, -1 for a token
    plan: RowPlan
    proposing: Tensor  # rows whose hidden state becomes logits, in order of work
    has_canvas: bool

    def to(self, device: torch.device | str) -> Batch:
        return Batch(
            self.token_ids.to(device),
            self.mask_index.to(device),
            self.plan.to(device),
            self.proposing.to(device),
            self.has_canvas,
        )


@dataclass(slots=True)
class _Columns:
    """Row attributes as growing Python lists; turned into tensors once."""

    token_ids: list[int] = field(default_factory=list)
    mask_index: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    prefix_end: list[int] = field(default_factory=list)
    span_start: list[int] = field(default_factory=list)
    span_end: list[int] = field(default_factory=list)
    is_canvas: list[bool] = field(default_factory=list)

    def add(self, token_id: int, position: int, slot: int, prefix_end: int) -> None:
        """A causal row, with an empty span and no mask embedding."""
        self.token_ids.append(token_id)
        self.mask_index.append(-1)
        self.positions.append(position)
        self.slots.append(slot)
        self.prefix_end.append(prefix_end)
        self.span_start.append(0)
        self.span_end.append(0)
        self.is_canvas.append(False)

    def add_canvas(self, token_id: int, position: int, index: int, span: tuple[int, int]) -> None:
        """A canvas row: sees all before the canvas and the rows of `span`; `index` -1 means it holds a token."""
        first, end = span
        self.add(token_id, position, -1, position - (len(self.token_ids) - first))
        self.mask_index[-1], self.is_canvas[-1] = index, True
        self.span_start[-1], self.span_end[-1] = first, end


def build_batch(works: Seq[Work], page_size: int) -> Batch:
    columns, segments, proposing = _Columns(), [], list[int]()
    for work in works:
        start = len(columns.token_ids)
        _add_context(columns, work, page_size)
        if work.tail is not None:
            first = len(columns.token_ids) - 1
            _add_tail(columns, work, work.tail, page_size)
            proposing.extend(range(first, len(columns.token_ids)))
        segments.append(Segment(start, len(columns.token_ids), _page_ids(work.sequence)))
    return _to_tensors(columns, segments, proposing)


def _page_ids(sequence: Sequence) -> Tensor:
    """Kept from one forward to the next: a sequence's list of pages grows, or is another list."""
    known = sequence.page_ids
    if known is None or known[0] is not sequence.pages or len(known[1]) != len(sequence.pages):
        known = sequence.page_ids = (sequence.pages, torch.tensor(sequence.pages, dtype=torch.int64))
    return known[1]


def _add_context(columns: _Columns, work: Work, page_size: int) -> None:
    pages = work.sequence.pages
    for position in range(work.start, work.end):
        slot = pages[position // page_size] * page_size + position % page_size
        columns.add(work.sequence.tokens[position], position, slot, position + 1)


def _add_tail(columns: _Columns, work: Work, tail: Tail, page_size: int) -> None:
    if tail.branches:
        _add_branches(columns, work.end, tail)
    elif tail.is_causal:
        _add_drafted(columns, work, tail, page_size)
    else:
        _add_canvas(columns, work.end, tail)


def _add_drafted(columns: _Columns, work: Work, tail: Tail, page_size: int) -> None:
    """Drafted tokens under verification: causal, written in advance; rejected slots are overwritten later."""
    pages = work.sequence.pages
    for position, token_id in enumerate(tail.token_ids, start=work.end):
        slot = pages[position // page_size] * page_size + position % page_size
        columns.add(token_id, position, slot, position + 1)


def _add_canvas(columns: _Columns, num_committed: int, tail: Tail) -> None:
    """Canvas rows see everything committed and each other, and write nothing."""
    span = (len(columns.token_ids), len(columns.token_ids) + len(tail.token_ids))
    for index, (token_id, is_masked) in enumerate(zip(tail.token_ids, tail.is_masked, strict=True)):
        columns.add_canvas(token_id, num_committed + index, index if is_masked else -1, span)


def _add_branches(columns: _Columns, num_committed: int, tail: Tail) -> None:
    """Independent continuations of one prefix: each row sees the prefix and its own branch up to itself."""
    token_ids = iter(tail.token_ids)
    for length in tail.branches:
        first = len(columns.token_ids)
        for i in range(length):
            columns.add(next(token_ids), num_committed + i, -1, num_committed)
            columns.span_start[-1] = first
            columns.span_end[-1] = first + i + 1


def _to_tensors(columns: _Columns, segments: list[Segment], proposing: list[int]) -> Batch:
    plan = RowPlan(
        positions=torch.tensor(columns.positions),
        slots=torch.tensor(columns.slots),
        is_canvas=torch.tensor(columns.is_canvas),
        prefix_end=torch.tensor(columns.prefix_end),
        span_start=torch.tensor(columns.span_start),
        span_end=torch.tensor(columns.span_end),
        segments=segments,
    )
    token_ids, mask_index = torch.tensor(columns.token_ids), torch.tensor(columns.mask_index)
    return Batch(token_ids, mask_index, plan, torch.tensor(proposing, dtype=torch.int64), any(columns.is_canvas))
