"""Attention over ragged rows: the row plan of a forward, the paged KV cache, and the SDPA implementation.

`SdpaAttend` is correct for any mix of rows and is the reference for every other kernel. Each sequence has its own SDPA
call, so a row's numbers do not depend on other sequences. On a CPU they do not depend on how a prompt was chunked or on
draft rows in the same forward either: rows and keys are padded to full tiles. torch's CPU kernel sums keys in blocks of
512, and uses other routines for fewer than 4 rows and for a remainder of keys. With full tiles its reduction order is
always the same, so a row's bits depend only on what it attends to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from quicksilver.model.config import ModelConfig
from quicksilver.model.lazy_memory import zero_bytes

# Rows of a tile of torch's CPU kernels (matmul and attention).
ROW_TILE = 4
# Keys of a block of torch's CPU attention kernel.
_KEY_BLOCK = 512
# A remainder of at most _SMALL_REMAINDER keys is padded to this tile only; tests check that the bits are the same.
_SMALL_KEY_TILE = 32
_SMALL_REMAINDER = 128
# Bytes after the cache of a CPU that kernels may read with the last keys.
_CACHE_LINE = 64
# From this many rows on, one mask for all heads takes less memory than a stacked one.
_MANY_ROWS = 64


class Visibility:
    """A (rows, keys) bool mask for SDPA; padded to full tiles on a CPU."""

    def __init__(self, visible: Tensor) -> None:
        self._visible = visible
        self._is_padded = visible.device.type == "cpu"
        self.num_keys = padded_keys(visible.shape[1]) if self._is_padded else visible.shape[1]
        self._attn_mask: Tensor | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        """q (rows, heads, d), k and v (num_keys, kv_heads, d) -> (rows, heads, d). `scale` is a factor on scores; None
        is 1 / sqrt(d)."""
        group = q.shape[1] // k.shape[1]
        is_by_head = self._is_padded and len(q) >= _MANY_ROWS
        if self._attn_mask is None:
            self._attn_mask = self._build_mask(1 if is_by_head else group, q.dtype)
        return (_attend_by_head if is_by_head else _attend_stacked)(q, k, v, self._attn_mask, scale)

    def _build_mask(self, group: int, dtype: torch.dtype) -> Tensor:
        """(1, 1, stacked rows, keys): 0 where visible, else -inf. Rows of padding attend to all, to stay finite."""
        visible = self._visible.repeat_interleave(group, 0)
        bias = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))
        if self._is_padded:
            bias = pad(bias, (0, self.num_keys - bias.shape[1]), value=float("-inf"))
            bias = pad(bias, (0, 0, 0, -len(bias) % ROW_TILE), value=0.0)
        return bias[None, None]


def _attend_stacked(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor, scale: float | None) -> Tensor:
    """Query heads that share a KV head are stacked as rows, so that few rows fill a tile."""
    num_rows, num_heads, head_dim = q.shape
    kv_heads = k.shape[1]
    stacked = q.reshape(num_rows, kv_heads, -1, head_dim).transpose(0, 1).flatten(1, 2)
    missing = attn_mask.shape[2] - stacked.shape[1]
    if missing:
        stacked = pad(stacked, (0, 0, 0, missing))
    keys, values = k.transpose(0, 1)[None], v.transpose(0, 1)[None]
    out = scaled_dot_product_attention(stacked[None], keys, values, attn_mask=attn_mask, scale=scale)
    out = out[0, :, : stacked.shape[1] - missing].reshape(kv_heads, num_rows, -1, head_dim)
    return out.transpose(0, 1).reshape(num_rows, num_heads, head_dim)


def _attend_by_head(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor, scale: float | None) -> Tensor:
    """The same bits with one mask for all heads: for many rows a stacked mask would be large."""
    num_rows, num_heads, head_dim = q.shape
    kv_heads = k.shape[1]
    whole = pad(q, (0, 0, 0, 0, 0, attn_mask.shape[2] - num_rows))
    by_head = whole.reshape(len(whole), kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    keys, values = (t.transpose(0, 1)[:, None].expand(-1, by_head.shape[1], -1, -1) for t in (k, v))
    out = scaled_dot_product_attention(by_head, keys, values, attn_mask=attn_mask, scale=scale)
    return out.permute(2, 0, 1, 3).reshape(len(whole), num_heads, head_dim)[:num_rows]


def padded_keys(num_keys: int) -> int:
    """The number of keys to pass to the CPU kernel so that it sums every prefix of them in the same order."""
    remainder = num_keys % _KEY_BLOCK
    tile = _SMALL_KEY_TILE if remainder <= _SMALL_REMAINDER else _KEY_BLOCK
    return -(-num_keys // tile) * tile


class Attend(Protocol):
    """Attention as the network calls it: once per layer, in layer order, with q and k already rotated."""

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

    A row attends to cache slots [0, prefix_end) of its sequence and to batch rows [span_start, span_end), which are
    within its own segment. A layer writes to the cache before it reads. Every row must attend to something.
    """

    positions: Tensor
    slots: Tensor  # cache slot (page * page_size + offset) for this row's k and v; -1 writes none
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
    """Keys and values of every layer: (layers, num_pages * page_size + num_scratch, kv_heads, head_dim).

    Where layers differ in their heads, the shape is (layers, slots, 1, largest kv_heads * head_dim): see `heads_of`."""

    k: Tensor
    v: Tensor
    page_size: int
    num_scratch: int = 0  # slots after the last page, outside every page table: for rows of draft trees

    @classmethod
    def allocate(
        cls,
        config: ModelConfig,
        num_pages: int,
        page_size: int,
        device: torch.device | str,
        dtype: torch.dtype,
        num_scratch: int = 0,
    ) -> PagedCache:
        shape = (config.num_layers, num_pages * page_size + num_scratch, *config.cache_shape)
        # Zeros: a NaN in a key that is masked out would still make the sum NaN.
        return cls(_zeros(shape, device, dtype), _zeros(shape, device, dtype), page_size, num_scratch)

    @property
    def num_paged(self) -> int:
        """Slots of pages; scratch slots follow them."""
        return self.k.shape[1] - self.num_scratch


def _zeros(shape: tuple[int, ...], device: torch.device | str, dtype: torch.dtype) -> Tensor:
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    num_bytes = math.prod(shape) * dtype.itemsize
    return zero_bytes(num_bytes + _CACHE_LINE)[:num_bytes].view(dtype).view(shape)


class SdpaAttend:
    """Paged attention for one forward, on any device. Masks are built once, at the first layer."""

    def __init__(self, plan: RowPlan, cache: PagedCache, scale: float | None = None) -> None:
        """`scale` is a factor on scores; None is 1 / sqrt(head_dim)."""
        self.cache, self.scale = cache, scale
        writes = (plan.slots >= 0).nonzero()[:, 0]
        self._write_rows = None if len(writes) == len(plan.slots) else writes
        self._write_slots = plan.slots[writes]
        self.views = self.make_views(plan)

    def make_views(self, plan: RowPlan, window: int = 0) -> list[_SegmentView]:
        return [_SegmentView(plan, segment, self.cache, window) for segment in plan.segments]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attend(self.views, layer, q, k, v)

    def attend(self, views: list[_SegmentView], layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._write(heads_of(self.cache.k[layer], k), k)
        self._write(heads_of(self.cache.v[layer], v), v)
        parts = [view.attend(layer, q, k, v, self.scale) for view in views]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _write(self, store: Tensor, rows: Tensor) -> None:
        written = rows if self._write_rows is None else rows[self._write_rows]
        if store.device.type == "cpu":
            # Padding may read slots that no row attends to, so the cache must stay finite. The row itself stays NaN.
            written = torch.nan_to_num(written, 0.0, 0.0, 0.0)
        store.index_copy_(0, self._write_slots, written.to(store.dtype))


def heads_of(store: Tensor, rows: Tensor) -> Tensor:
    """The slots of one layer with the heads of `rows`: a view of the leading part of each slot."""
    if store.shape[1:] == rows.shape[1:]:
        return store
    return store[:, 0, : rows.shape[1] * rows.shape[2]].view(len(store), *rows.shape[1:])


class _SegmentView:
    """One segment of a forward: where its keys are, and which of them each row attends to.

    With a `window`, a row attends to that many last positions of the context, itself included. A row that writes no KV
    is not one of them, so it attends to one less."""

    def __init__(self, plan: RowPlan, segment: Segment, cache: PagedCache, window: int = 0) -> None:
        self.rows, self.cache = slice(segment.row_start, segment.row_end), cache
        prefix_len = int(plan.prefix_end[self.rows].max())
        self.span = _span_of(plan, self.rows)
        visible = _visible(plan, self.rows, prefix_len, self.span, window)
        self._visibility = Visibility(visible)
        padding = self._visibility.num_keys - visible.shape[1]
        if self.span is None:
            self.prefix, padding = _prefix_slots(segment, cache, prefix_len, prefix_len + padding), 0
        else:
            self.prefix = _prefix_slots(segment, cache, prefix_len, prefix_len)
        self._num_padding = padding

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        keys = self._gather(heads_of(self.cache.k[layer], k), k)
        values = self._gather(heads_of(self.cache.v[layer], v), v)
        return self._visibility.attend(q[self.rows], keys, values, scale)

    def _gather(self, store: Tensor, rows: Tensor) -> Tensor:
        prefix = store[self.prefix].to(rows.dtype)
        if self.span is None:
            return prefix
        return torch.cat((prefix, rows[self.span], rows.new_zeros(self._num_padding, *rows.shape[1:])))


def _span_of(plan: RowPlan, rows: slice) -> slice | None:
    """The smallest range of batch rows that contains every span of the segment."""
    start, end = plan.span_start[rows], plan.span_end[rows]
    has_span = end > start
    if not bool(has_span.any()):
        return None
    return slice(int(start[has_span].min()), int(end[has_span].max()))


def _visible(plan: RowPlan, rows: slice, prefix_len: int, span: slice | None, window: int) -> Tensor:
    """(rows, prefix_len + span rows) bool."""
    device = plan.prefix_end.device
    index, prefix_end = torch.arange(prefix_len, device=device), plan.prefix_end[rows, None]
    visible = index < prefix_end
    if window:
        visible &= index >= prefix_end - window + (plan.slots[rows, None] < 0).int()
    if span is None:
        return visible
    batch_rows = torch.arange(span.start, span.stop, device=device)
    in_span = (batch_rows >= plan.span_start[rows, None]) & (batch_rows < plan.span_end[rows, None])
    return torch.cat((visible, in_span), dim=1)


def _prefix_slots(segment: Segment, cache: PagedCache, prefix_len: int, num_slots: int) -> slice | Tensor:
    """Cache slots of the prefix, padded to `num_slots` with arbitrary ones; a slice if the pages are contiguous."""
    page_size = cache.page_size
    pages = segment.page_ids[: -(-prefix_len // page_size)]
    if len(pages) == 0:
        return slice(0, num_slots)
    first = int(pages[0]) * page_size
    if first + num_slots <= cache.k.shape[1] and bool((pages.diff() == 1).all()):
        return slice(first, first + num_slots)
    slots = pages[:, None] * page_size + torch.arange(page_size, device=pages.device)
    return pad(slots.flatten()[:prefix_len], (0, num_slots - prefix_len), value=first)


def on_full_tiles(linear: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`linear(x)`, on a CPU with the rows padded to full tiles: a row's bits then do not depend on the row count."""
    missing = missing_rows(x, ROW_TILE)
    return linear(pad(x, (0, 0, 0, missing)))[: len(x)] if missing else linear(x)


def missing_rows(x: Tensor, tile: int) -> int:
    """How many rows of padding make float matmuls on a CPU batch-invariant; 0 on other devices and in training.

    CPU libraries use different routines, with another reduction order, for a remainder of rows and for few rows.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling() or torch.is_grad_enabled() or tile == 1:
        return 0
    return max(-len(x) % tile, min_invariant_rows() - len(x))


# (outputs, inputs) of the matmuls that `min_invariant_rows` tries.
_TRIED_SHAPES = ((512, 192), (192, 576), (64, 1536))


@cache
def min_invariant_rows() -> int:
    """The smallest row count from which this CPU's matmuls keep one reduction order per row: 4 on most CPUs.

    It is found by comparing bits once per process.
    """
    generator = torch.Generator().manual_seed(0)
    pairs = [
        (torch.randn(64, k, generator=generator), torch.randn(n, k, generator=generator)) for n, k in _TRIED_SHAPES
    ]

    def is_enough(count: int) -> bool:
        row_counts = range(count, 33, ROW_TILE)
        return all(torch.equal(x[:rows] @ w.t(), (x @ w.t())[:rows]) for x, w in pairs for rows in row_counts)

    return next((count for count in (ROW_TILE, 8, 16, 32) if is_enough(count)), ROW_TILE)
