"""Attention over rows: the plan of a forward, the paged cache, and the SDPA paths that obey them.

The plan is an argument, never hidden state. `SdpaAttend` is right for any ragged mix and is the oracle for every other
kernel; each sequence gets its own SDPA call, so batch mates cannot reach a row's numbers through attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from quicksilver.model.config import ModelConfig


class Attend(Protocol):
    """What the network needs of attention: called once a layer, in layer order, with q and k already rotated."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (rows, heads, head_dim), k and v (rows, kv_heads, head_dim) -> (rows, heads, head_dim)."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows of one sequence, contiguous in the batch, and its pages in token order."""

    row_start: int
    row_end: int
    page_ids: Tensor


@dataclass(frozen=True, slots=True)
class RowPlan:
    """What every row of a forward reads and writes. All tensors are (rows,).

    A row sees cache slots [0, prefix_end) of its sequence and batch rows [span_start, span_end), which lie within its
    own segment. Writes of a layer happen before its reads. Every row must see something.
    """

    positions: Tensor
    slots: Tensor
    """Cache slot (page * page_size + offset) that takes this row's k and v; -1 writes none."""
    is_canvas: Tensor
    prefix_end: Tensor
    span_start: Tensor
    span_end: Tensor
    segments: list[Segment]

    def to(self, device: torch.device | str) -> RowPlan:
        return RowPlan(
            self.positions.to(device),
            self.slots.to(device),
            self.is_canvas.to(device),
            self.prefix_end.to(device),
            self.span_start.to(device),
            self.span_end.to(device),
            [Segment(s.row_start, s.row_end, s.page_ids.to(device)) for s in self.segments],
        )


@dataclass(frozen=True, slots=True)
class PagedCache:
    """Keys and values of every layer: (layers, num_pages * page_size, kv_heads, head_dim)."""

    k: Tensor
    v: Tensor
    page_size: int

    @classmethod
    def allocate(
        cls, config: ModelConfig, num_pages: int, page_size: int, device: torch.device | str, dtype: torch.dtype
    ) -> PagedCache:
        shape = (config.num_layers, num_pages * page_size, config.num_kv_heads, config.head_dim)
        # Zeros, not empty: a stray NaN times a zero probability would still be NaN.
        k = torch.zeros(shape, device=device, dtype=dtype)
        return cls(k, torch.zeros_like(k), page_size)


class SdpaAttend:
    """Paged attention for one forward, on any device. Visibility is worked out here once, then used by every layer."""

    def __init__(self, plan: RowPlan, cache: PagedCache) -> None:
        self.cache = cache
        writes = (plan.slots >= 0).nonzero().squeeze(1)
        self._write_rows = None if len(writes) == len(plan.slots) else writes
        self._write_slots = plan.slots[writes]
        self._views = [_SegmentView.build(plan, segment, cache) for segment in plan.segments]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._write(self.cache.k[layer], k)
        self._write(self.cache.v[layer], v)
        parts = [view.attend(layer, q, k, v) for view in self._views]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _write(self, store: Tensor, rows: Tensor) -> None:
        written = rows if self._write_rows is None else rows[self._write_rows]
        store.index_copy_(0, self._write_slots, written.to(store.dtype))


@dataclass(frozen=True, slots=True)
class _SegmentView:
    """One segment's part of a forward: where its keys lie, and which of them each row sees."""

    rows: slice
    cache: PagedCache
    prefix: slice | Tensor
    """Cache slots [0, longest prefix): a slice when the pages are one ascending run."""
    span: slice | None
    visible: Tensor | None
    """(rows, keys) bool; None when every row sees every key, or when `is_causal` says it all."""
    is_causal: bool
    """Rows and keys form one square, lower-triangular: a prompt's first chunk."""

    @classmethod
    def build(cls, plan: RowPlan, segment: Segment, cache: PagedCache) -> _SegmentView:
        rows = slice(segment.row_start, segment.row_end)
        prefix_end = plan.prefix_end[rows]
        prefix_len = int(prefix_end.max())
        span = _span_of(plan, rows)
        visible: Tensor | None = _visible(plan, rows, prefix_len, span)
        num_rows = segment.row_end - segment.row_start
        is_square = span is None and prefix_len == num_rows > 1
        is_causal = is_square and bool((prefix_end.diff() == 1).all())
        if is_causal or (visible is not None and bool(visible.all())):
            visible = None
        return cls(rows, cache, _prefix_slots(segment, prefix_len, cache.page_size), span, visible, is_causal)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys = self._gather(self.cache.k[layer], k)
        values = self._gather(self.cache.v[layer], v)
        return attend_dense(q[self.rows], keys, values, self.visible, self.is_causal)

    def _gather(self, store: Tensor, rows: Tensor) -> Tensor:
        prefix = store[self.prefix].to(rows.dtype)
        return prefix if self.span is None else torch.cat((prefix, rows[self.span]))


def _span_of(plan: RowPlan, rows: slice) -> slice | None:
    """The smallest run of batch rows that holds every span of the segment."""
    start, end = plan.span_start[rows], plan.span_end[rows]
    has_span = end > start
    if not bool(has_span.any()):
        return None
    return slice(int(start[has_span].min()), int(end[has_span].max()))


def _visible(plan: RowPlan, rows: slice, prefix_len: int, span: slice | None) -> Tensor:
    device = plan.prefix_end.device
    visible = torch.arange(prefix_len, device=device) < plan.prefix_end[rows, None]
    if span is None:
        return visible
    batch_rows = torch.arange(span.start, span.stop, device=device)
    in_span = (batch_rows >= plan.span_start[rows, None]) & (batch_rows < plan.span_end[rows, None])
    return torch.cat((visible, in_span), dim=1)


def _prefix_slots(segment: Segment, prefix_len: int, page_size: int) -> slice | Tensor:
    pages = segment.page_ids[: -(-prefix_len // page_size)]
    if len(pages) == 0:
        return slice(0, 0)
    if bool((pages.diff() == 1).all()):
        first = int(pages[0]) * page_size
        return slice(first, first + prefix_len)
    slots = pages[:, None] * page_size + torch.arange(page_size, device=pages.device)
    return slots.flatten()[:prefix_len]


def attend_dense(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, is_causal: bool) -> Tensor:
    """SDPA of (rows, heads, d) over (keys, kv_heads, d). Query heads that share a KV head are stacked as rows of it,
    so keys are never repeated; a causal square keeps its heads apart, which lets the kernel skip the upper half."""
    num_rows, num_heads, head_dim = q.shape
    kv_heads = k.shape[1]
    k, v = k.transpose(0, 1), v.transpose(0, 1)
    if is_causal:
        out = scaled_dot_product_attention(
            q.transpose(0, 1)[None], k[None], v[None], is_causal=True, enable_gqa=num_heads != kv_heads
        )
        return out[0].transpose(0, 1)
    group = num_heads // kv_heads
    stacked = q.reshape(num_rows, kv_heads, group, head_dim).permute(1, 2, 0, 3).flatten(1, 2)
    attn_mask = None if visible is None else visible.repeat(group, 1)[None]
    out = scaled_dot_product_attention(stacked[None], k[None], v[None], attn_mask=attn_mask)[0]
    return out.view(kv_heads, group, num_rows, head_dim).permute(2, 0, 1, 3).reshape(num_rows, num_heads, head_dim)


@dataclass(frozen=True, slots=True)
class DenseAttend:
    """Attention without a cache: rows are `num_sequences` sequences of one length, laid end to end."""

    num_sequences: int
    attn_mask: Tensor | None = None
    """Boolean, True = visible, broadcastable to (num_sequences, heads, len, len)."""
    is_causal: bool = False

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q4, k4, v4 = (t.view(self.num_sequences, -1, *t.shape[1:]).transpose(1, 2) for t in (q, k, v))
        out = scaled_dot_product_attention(
            q4, k4, v4, attn_mask=self.attn_mask, is_causal=self.is_causal, enable_gqa=q.shape[1] != k.shape[1]
        )
        return out.transpose(1, 2).reshape(q.shape)
