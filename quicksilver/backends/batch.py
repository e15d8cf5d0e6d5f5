"""Builds the rows of one forward from the works of a step, and writes their grammar masks.

Each sequence has its context rows first (causal or block-causal, written to its pages), then the rows of its tail.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quicksilver.backends.base import Sequence, Work
from quicksilver.core import MaskGroup, MaskTask, TokenConstraint
from quicksilver.dialect import ContextKind, Dialect
from quicksilver.diffusion.decoder import Tail
from quicksilver.model.attention import RowPlan, Segment
from quicksilver.model.row_adapters import AdapterRows, RowAdapter


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of a forward, and which of them propose tokens."""

    token_ids: Tensor  # (rows,)
    mask_index: Tensor  # (rows,) canvas index of a mask embedding, -1 for a token
    plan: RowPlan
    proposing: Tensor  # rows whose hidden state becomes logits, in order of work
    has_canvas: bool
    has_prompt: bool = False  # some sequence has more than one context row
    row_adapters: tuple[AdapterRows, ...] = ()

    def to(self, device: torch.device | str) -> Batch:
        return Batch(
            self.token_ids.to(device),
            self.mask_index.to(device),
            self.plan.to(device),
            self.proposing.to(device),
            self.has_canvas,
            self.has_prompt,
            tuple(one.to(device) for one in self.row_adapters),
        )


Ints = npt.NDArray[np.int64]
Number = TypeVar("Number", np.int64, np.bool_)
# Longer than any text: the block of a context in which every row sees the whole text.
_WHOLE_TEXT = 1 << 40
_NO_TAIL = Tail()


@dataclass(slots=True)
class _Columns:
    """The attributes of all rows, one entry per row."""

    token_ids: Ints
    mask_index: Ints
    positions: Ints
    slots: Ints
    prefix_end: Ints
    span_start: Ints
    span_end: Ints
    is_canvas: npt.NDArray[np.bool_]


def build_batch(works: Seq[Work], page_size: int) -> Batch:
    tails = [work.tail or _NO_TAIL for work in works]
    context_lens = np.array([work.end - work.start for work in works])
    tail_lens = np.array([len(tail.token_ids) for tail in tails])
    ends = (context_lens + tail_lens).cumsum()
    first_tail_rows = ends - tail_lens
    pages = [_page_ids(work.sequence) for work in works]
    columns = _columns(works, tails, context_lens, tail_lens, first_tail_rows)
    columns.slots = _slots([array for array, _ in pages], columns, context_lens + tail_lens, page_size)
    for work, tail, first in zip(works, tails, first_tail_rows.tolist(), strict=True):
        if tail.branches:
            _cut_branches(columns, first, work.end, tail)
        elif tail.positions:
            columns.positions[first : first + len(tail.positions)] = np.array(tail.positions) + work.end
    row_ends = ends.tolist()
    page_ids = [tensor for _, tensor in pages]
    segments = [Segment(*one) for one in zip([0, *row_ends[:-1]], row_ends, page_ids, strict=True)]
    plan = RowPlan(
        torch.from_numpy(columns.positions),
        torch.from_numpy(columns.slots),
        torch.from_numpy(columns.is_canvas),
        torch.from_numpy(columns.prefix_end),
        torch.from_numpy(columns.span_start),
        torch.from_numpy(columns.span_end),
        segments,
    )
    batch = Batch(
        torch.from_numpy(columns.token_ids),
        torch.from_numpy(columns.mask_index),
        plan,
        torch.from_numpy(_proposing(works, first_tail_rows - 1)),
        bool(columns.is_canvas.any()),
        bool(context_lens.max() > 1),
    )
    adapters = _row_adapters(works, segments, plan.is_canvas)
    return replace(batch, row_adapters=adapters) if adapters else batch


def _columns(
    works: Seq[Work], tails: Seq[Tail], context_lens: Ints, tail_lens: Ints, first_tail_rows: Ints
) -> _Columns:
    """All but the slots."""
    counts = context_lens + tail_lens
    text_ends = np.array([work.end for work in works])

    def of_rows(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
        return values.repeat(counts)

    first_tail_row = of_rows(first_tail_rows)
    index = np.arange(len(first_tail_row)) - first_tail_row  # in the tail; negative in the context
    text_end = of_rows(text_ends)
    positions = text_end + index
    is_tail = index >= 0
    is_causal = of_rows(np.array([tail.is_causal for tail in tails]))
    is_canvas = is_tail & ~is_causal
    block_len = of_rows(np.array([_block_len(work.sequence.dialect) for work in works]))
    seen = np.where(is_tail, positions + 1, np.minimum((positions // block_len + 1) * block_len, text_end))
    sees_tail = is_canvas | (block_len == _WHOLE_TEXT) & (of_rows(tail_lens) > 0)
    has_order = of_rows(np.array([tail.has_causal_canvas for tail in tails]))
    tail_end = np.where(has_order, index + 1, of_rows(tail_lens))
    is_masked = np.zeros(len(index), np.bool_)
    is_masked[is_tail] = list(chain.from_iterable(tail.is_masked for tail in tails))
    return _Columns(
        np.array(list(chain.from_iterable(_tokens(work, tail) for work, tail in zip(works, tails, strict=True)))),
        np.where(is_masked & is_canvas, index, -1),
        positions,
        positions,
        np.where(is_canvas, text_end, seen),
        np.where(sees_tail, first_tail_row, 0),
        np.where(sees_tail, first_tail_row + tail_end, 0),
        is_canvas,
    )


def _block_len(dialect: Dialect) -> int:
    """A context row sees the text up to the end of its block. A causal row is a block of its own."""
    if dialect.context is ContextKind.CAUSAL:
        return 1
    return dialect.block_len if dialect.context is ContextKind.BLOCK else _WHOLE_TEXT


def _tokens(work: Work, tail: Tail) -> Seq[int]:
    return (*work.sequence.tokens[work.start : work.end], *tail.token_ids)


def _slots(tables: Seq[Ints], columns: _Columns, counts: Ints, page_size: int) -> Ints:
    """KV slots of the rows that write, -1 for all others. `tables`: the pages of each sequence, `counts`: its rows."""
    lengths, written = np.array([len(table) for table in tables]), np.flatnonzero(~columns.is_canvas)
    first_page = (lengths.cumsum() - lengths).repeat(counts)[written]
    at, slots = columns.positions[written], np.full(len(columns.positions), -1)
    slots[written] = np.concatenate(tables)[first_page + at // page_size] * page_size + at % page_size
    return slots


def _cut_branches(columns: _Columns, first: int, num_committed: int, tail: Tail) -> None:
    """Independent continuations of one prefix: each row sees the prefix and its own branch up to itself."""
    columns.is_canvas[first : first + len(tail.token_ids)] = False
    columns.mask_index[first : first + len(tail.token_ids)] = -1
    for length in tail.branches:
        rows, order = slice(first, first + length), np.arange(length)
        columns.positions[rows] = num_committed + order
        columns.span_start[rows], columns.span_end[rows] = first, first + 1 + order
        first += length


def _proposing(works: Seq[Work], last_context_rows: Ints) -> Ints:
    """The proposing rows of all works, in order."""
    counts = np.array([work.num_proposals for work in works])
    ends = counts.cumsum()
    first_rows = np.array([work.tail.proposing_rows[0] if work.tail is not None else 0 for work in works])
    rows: Ints = np.arange(ends[-1]) + (last_context_rows + first_rows - ends + counts).repeat(counts)
    for work, last_context, end in zip(works, last_context_rows.tolist(), ends.tolist(), strict=True):
        if work.tail is not None and work.tail.row_of:
            rows[end - work.num_proposals : end] = np.array(work.tail.row_of) + last_context
    return rows


def _row_adapters(works: Seq[Work], segments: list[Segment], is_canvas: Tensor) -> tuple[AdapterRows, ...]:
    """The rows of every adapter of the batch. Canvas rows are the last ones of a segment."""
    rows: dict[RowAdapter, list[range]] = {}
    for work, segment in zip(works, segments, strict=True):
        adapter, start, end = work.sequence.adapter, segment.row_start, segment.row_end
        if adapter is None:
            continue
        if adapter.canvas is not None and (num_canvas := int(is_canvas[start:end].sum())):
            end -= num_canvas
            rows.setdefault(adapter.canvas, []).append(range(end, segment.row_end))
        if end > start:
            rows.setdefault(adapter, []).append(range(start, end))
    return tuple(AdapterRows(adapter, _tensor(list(chain(*ranges)))) for adapter, ranges in rows.items())


def _page_ids(sequence: Sequence) -> tuple[Ints, Tensor]:
    """The pages as an array and as a tensor of the same memory, cached between forwards. The list of pages only grows,
    or is replaced by another list."""
    known = sequence.page_ids
    if known is None or known[0] is not sequence.pages or len(known[1]) != len(sequence.pages):
        pages = np.array(sequence.pages, dtype=np.int64)
        known = sequence.page_ids = (sequence.pages, pages, torch.from_numpy(pages))
    return known[1:]


def _tensor(values: list[int]) -> Tensor:
    """Through numpy, which converts lists several times faster than torch."""
    return torch.from_numpy(np.array(values, dtype=np.int64))


def write_masks(tasks: Seq[MaskTask[TokenConstraint]]) -> list[int]:
    """-> for each task how many rows have a mask. Constraints of one group are written in one call, all others alone.
    An exception of a constraint propagates."""
    num_rows = [0] * len(tasks)
    for group, members in _by_group(tasks):
        if group is None or len(members) == 1:
            for i in members:
                constraint, ahead, out = tasks[i]
                num_rows[i] = constraint.write_masks(ahead, out)
        else:
            found = group.write_masks([tasks[i] for i in members])
            for i, count in zip(members, found, strict=True):
                num_rows[i] = count
    return num_rows


def _by_group(tasks: Seq[MaskTask[TokenConstraint]]) -> list[tuple[MaskGroup | None, list[int]]]:
    """Groups with the places of their tasks. There are few groups, and they need not be hashable."""
    groups: list[tuple[MaskGroup | None, list[int]]] = []
    for i, (constraint, _, _) in enumerate(tasks):
        group = constraint.group
        for known, members in groups:
            if known == group:
                members.append(i)
                break
        else:
            groups.append((group, [i]))
    return groups
