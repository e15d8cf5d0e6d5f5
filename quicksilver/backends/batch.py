"""Builds the rows of one forward from the works of a step, and writes their grammar masks.

Each sequence has its context rows first (causal or block-causal, written to its pages), then the rows of its tail.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quicksilver.backends.base import Sequence, Work
from quicksilver.core import MaskGroup, MaskTask, TokenConstraint
from quicksilver.dialect import ContextKind
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


# From this many context rows on, arrays are faster than lists.
MANY_ROWS = 128


@dataclass(slots=True)
class _Columns:
    """One list per row attribute for the newest rows, and arrays of all attributes for the rows before them."""

    token_ids: list[int] = field(default_factory=list)
    mask_index: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    prefix_end: list[int] = field(default_factory=list)
    span_start: list[int] = field(default_factory=list)
    span_end: list[int] = field(default_factory=list)
    is_canvas: list[bool] = field(default_factory=list)
    parts: list[list[npt.NDArray[np.int64]]] = field(default_factory=list)
    num_in_parts: int = 0

    def __len__(self) -> int:
        return self.num_in_parts + len(self.token_ids)

    @property
    def lists(self) -> list[list[int]]:
        rows = [self.token_ids, self.mask_index, self.positions, self.slots, self.prefix_end]
        return [*rows, self.span_start, self.span_end, self.is_canvas]  # type: ignore[list-item]

    def flush(self) -> None:
        """Converts the lists to arrays."""
        if self.token_ids:
            self._add_part([np.array(values, dtype=np.int64) for values in self.lists])
            for values in self.lists:
                values.clear()

    def add_many(self, token_ids: Seq[int], start: int, slots: npt.NDArray[np.int64]) -> None:
        """As `add`, with arrays."""
        self.flush()
        positions = np.arange(start, start + len(token_ids))
        zeros = np.zeros_like(positions)
        tokens = np.array(token_ids, dtype=np.int64)
        self._add_part([tokens, zeros - 1, positions, slots, positions + 1, zeros, zeros, zeros])

    def _add_part(self, part: list[npt.NDArray[np.int64]]) -> None:
        self.parts.append(part)
        self.num_in_parts += len(part[0])

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
        first_row = self.num_in_parts + first
        self.prefix_end[first:] = [start] * count
        self.span_start[first:] = [first_row] * count
        self.span_end[first:] = [first_row + end for end in span_end]


def build_batch(works: Seq[Work], page_size: int) -> Batch:
    columns, segments, proposing = _Columns(), [], list[int]()
    for work in works:
        start = len(columns)
        _add_context(columns, work, page_size)
        if work.tail is not None:
            last_context, (first, end) = len(columns) - 1, work.tail.proposing_rows
            if work.tail.token_ids:
                _add_tail(columns, work, work.tail, page_size)
            rows = work.tail.row_of or range(first, end)
            proposing.extend(last_context + row for row in rows)
        segments.append(Segment(start, len(columns), _page_ids(work.sequence)))
    has_prompt = any(work.end - work.start > 1 for work in works)
    batch = _to_tensors(columns, segments, proposing, has_prompt)
    adapters = _row_adapters(works, segments, batch.plan.is_canvas)
    return replace(batch, row_adapters=adapters) if adapters else batch


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


def _page_ids(sequence: Sequence) -> Tensor:
    """Cached between forwards. The list of pages only grows, or is replaced by another list."""
    known = sequence.page_ids
    if known is None or known[0] is not sequence.pages or len(known[1]) != len(sequence.pages):
        known = sequence.page_ids = (sequence.pages, _tensor(sequence.pages))
    return known[1]


def _add_context(columns: _Columns, work: Work, page_size: int) -> None:
    sequence, first = work.sequence, len(columns.token_ids)
    tokens, context = sequence.tokens[work.start : work.end], sequence.dialect.context
    if len(tokens) >= MANY_ROWS and context is ContextKind.CAUSAL:
        positions = np.arange(work.start, work.end)
        pages = _page_ids(sequence).numpy()[positions // page_size]
        columns.add_many(tokens, work.start, pages * page_size + positions % page_size)
        return
    columns.add(tokens, work.start, _slots(sequence.pages, work.start, work.end, page_size))
    if context is ContextKind.FULL and work.tail is not None:
        # Rows that write KV and see all others: those of the context in the cache, those of the tail beside them.
        count, first_row = len(tokens), len(columns)
        columns.prefix_end[first:] = [work.end] * count
        columns.span_start[first:] = [first_row] * count
        columns.span_end[first:] = [first_row + len(work.tail.token_ids)] * count
    if context is ContextKind.BLOCK:
        length = sequence.dialect.block_len
        columns.prefix_end[first:] = [
            min((position // length + 1) * length, work.end) for position in range(work.start, work.end)
        ]


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
    """Canvas rows see all positions of the context and each other, and write no KV."""
    first, count = len(columns.token_ids), len(tail.token_ids)
    span_end = range(1, count + 1) if tail.has_causal_canvas else [count] * count
    columns.add_unwritten(tail.token_ids, num_committed, span_end)
    if tail.positions:
        columns.positions[first:] = [num_committed + position for position in tail.positions]
    columns.mask_index[first:] = [index if is_masked else -1 for index, is_masked in enumerate(tail.is_masked)]
    columns.is_canvas[first:] = [True] * count


def _add_branches(columns: _Columns, num_committed: int, tail: Tail) -> None:
    """Independent continuations of one prefix: each row sees the prefix and its own branch up to itself."""
    start = 0
    for length in tail.branches:
        columns.add_unwritten(tail.token_ids[start : start + length], num_committed, range(1, length + 1))
        start += length


def _to_tensors(columns: _Columns, segments: list[Segment], proposing: list[int], has_prompt: bool) -> Batch:
    columns.flush()
    arrays = (
        columns.parts[0] if len(columns.parts) == 1 else [np.concatenate(p) for p in zip(*columns.parts, strict=True)]
    )
    token_ids, mask_index, positions, slots, prefix_end, span_start, span_end, is_canvas = map(torch.from_numpy, arrays)
    plan = RowPlan(
        positions=positions,
        slots=slots,
        is_canvas=is_canvas.bool(),
        prefix_end=prefix_end,
        span_start=span_start,
        span_end=span_end,
        segments=segments,
    )
    return Batch(token_ids, mask_index, plan, _tensor(proposing), bool(arrays[-1].any()), has_prompt)


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
