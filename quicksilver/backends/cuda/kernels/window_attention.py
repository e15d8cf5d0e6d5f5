"""Paged attention of DiffusionGemma: sliding windows, large heads, and a scale of one.

Layers differ in their heads, and share the slots of one cache (`model.attention.heads_of`). The row plan is that of
`model/attention.py`: a row attends to the cached positions before `prefix_end`, of which a window layer keeps the last
ones, and to the rows of its span. The key blocks of a tile, cached ones first, are divided among `splits` programs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.backends.cuda.kernels.attention import RowTables, accumulate_keys
from quicksilver.backends.cuda.kernels.fp8 import fp8_step
from quicksilver.backends.cuda.kernels.gemma_rows import Rows
from quicksilver.backends.cuda.kernels.launch import pdl_options, pdl_wait_and_launch
from quicksilver.backends.cuda.kernels.row_kernels import quantise_rows

# Rows of a tile in `RowTables.tiles`. A program processes a part of a tile where more query heads share a KV head.
TILE_ROWS = 64
_LOG2_E = 1.4426950408889634
# Heads above it have half as many stacked queries in a program, and key blocks of half the size.
_WIDE_HEAD = 256


@dataclass(frozen=True, slots=True)
class WindowShape:
    """The heads of a layer. `window` counts the positions that a row attends to, itself included; 0 is all."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int = 0

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def block_m(self) -> int:
        """Stacked queries of a program."""
        return 64 if self.head_dim > _WIDE_HEAD else 128

    @property
    def part_rows(self) -> int:
        """Rows of a program."""
        return min(self.block_m // self.group, TILE_ROWS)

    @property
    def num_all(self) -> int:
        """Heads of queries, keys and values together."""
        return self.num_heads + 2 * self.num_kv_heads


def num_splits(num_rows: int) -> int:
    """Programs along the keys: with few rows, more of them occupy the GPU."""
    return 4 if num_rows <= 512 else 1


@triton.jit
def _attend_kernel(
    q, k, v, k_cache, v_cache, out, part_acc, part_top, part_total,
    prefix_end, slots, span_start, span_end, tiles, pages,
    scale, row_stride, slot_stride, max_pages, num_rows, window,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, PARTS: tl.constexpr,
    PART_ROWS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
    WINDOWED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait_and_launch(PDL)
    split, head, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2) // PARTS
    segment, tile_end = tl.load(tiles + 3 * tile), tl.load(tiles + 3 * tile + 2)
    first = tl.load(tiles + 3 * tile + 1) + tl.program_id(2) % PARTS * PART_ROWS
    GROUP: tl.constexpr = HEADS // KV_HEADS
    m, n, d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, D)
    row = first + m // GROUP
    is_row = (row < tile_end) & (m < PART_ROWS * GROUP)
    if first < tile_end:
        visible_end = tl.load(prefix_end + row, mask=is_row, other=0)
        visible_start = tl.zeros_like(visible_end)
        if WINDOWED:
            writes_none = tl.load(slots + row, mask=is_row, other=0) < 0
            visible_start = tl.maximum(visible_end - window + writes_none.to(tl.int32), 0)
        from_row = tl.load(span_start + row, mask=is_row, other=0)
        to_row = tl.load(span_end + row, mask=is_row, other=0)
        longest, has_span = tl.max(visible_end, 0), to_row > from_row
        begin = tl.min(tl.where(is_row, visible_start, 2147483647), 0) // BLOCK_N
        num_prefix = tl.maximum(tl.cdiv(longest, BLOCK_N) - begin, 0)
        high = tl.max(tl.where(has_span, to_row, 0), 0)
        low = tl.min(tl.where(has_span, from_row, high), 0)
        q_at = row.to(tl.int64)[:, None] * row_stride + ((head * GROUP + m % GROUP) * D)[:, None] + d[None, :]
        q_tile = tl.load(q + q_at, mask=is_row[:, None], other=0.0)
        top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        acc = tl.zeros((BLOCK_M, D), tl.float32)
        for block in range(split, num_prefix, SPLITS):
            key = (begin + block) * BLOCK_N + n
            page = tl.load(pages + segment * max_pages + key // PAGE, mask=key < longest, other=0)
            at = (tl.maximum(page, 0).to(tl.int64) * PAGE + key % PAGE) * slot_stride + head * D
            k_tile = tl.load(k_cache + at[None, :] + d[:, None])
            v_tile = tl.load(v_cache + at[:, None] + d[None, :])
            is_visible = (key[None, :] < visible_end[:, None]) & (key[None, :] >= visible_start[:, None])
            top, total, acc = accumulate_keys(q_tile, k_tile, v_tile, is_visible, top, total, acc, scale)
        # The blocks of the span follow those of the prefix in the same turn of splits.
        skipped = (split + SPLITS - num_prefix % SPLITS) % SPLITS
        for start in range(low + skipped * BLOCK_N, high, SPLITS * BLOCK_N):
            other = start + n
            at = other.to(tl.int64) * row_stride + head * D
            k_tile = tl.load(k + at[None, :] + d[:, None], mask=(other < high)[None, :], other=0.0)
            v_tile = tl.load(v + at[:, None] + d[None, :], mask=(other < high)[:, None], other=0.0)
            is_visible = (other[None, :] >= from_row[:, None]) & (other[None, :] < to_row[:, None])
            top, total, acc = accumulate_keys(q_tile, k_tile, v_tile, is_visible, top, total, acc, scale)
        at_head = row.to(tl.int64) * HEADS + head * GROUP + m % GROUP
        if SPLITS == 1:
            y = acc / tl.where(total > 0, total, 1.0)[:, None]
            tl.store(out + at_head[:, None] * D + d[None, :], y.to(out.dtype.element_ty), mask=is_row[:, None])
        else:
            at_part = tl.cast(split, tl.int64) * num_rows * HEADS + at_head
            tl.store(part_acc + at_part[:, None] * D + d[None, :], acc, mask=is_row[:, None])
            tl.store(part_top + at_part, top, mask=is_row)
            tl.store(part_total + at_part, total, mask=is_row)


@triton.jit
def _merge_kernel(
    out, steps, part_acc, part_top, part_total, num_rows,
    HEADS: tl.constexpr, BLOCK_H: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr, FP8: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program per row: the splits' softmax sums become one output. Unused rows are zero."""
    pdl_wait_and_launch(PDL)
    row, head, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_H), tl.arange(0, D)
    is_head = head < HEADS
    peak = tl.full((BLOCK_H,), float("-inf"), tl.float32)
    for split in tl.static_range(SPLITS):
        at = (split * num_rows + row) * HEADS + head
        peak = tl.maximum(peak, tl.load(part_top + at, mask=is_head, other=0.0))
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    whole = tl.zeros((BLOCK_H,), tl.float32)
    y = tl.zeros((BLOCK_H, D), tl.float32)
    for split in tl.static_range(SPLITS):
        at = (split * num_rows + row) * HEADS + head
        total = tl.load(part_total + at, mask=is_head, other=0.0)
        weight = tl.where(total > 0, tl.exp2(tl.load(part_top + at, mask=is_head, other=0.0) - peak), 0.0)
        whole += total * weight
        acc = tl.load(part_acc + at[:, None] * D + d[None, :], mask=is_head[:, None], other=0.0)
        y += acc * weight[:, None]
    y = y / tl.where(whole > 0, whole, 1.0)[:, None]
    if FP8:
        step = fp8_step(tl.max(tl.max(tl.abs(y), 1), 0))
        tl.store(steps + row, step)
        y = y / step
    to = out + (row * HEADS + head)[:, None] * D + d[None, :]
    tl.store(to, y.to(out.dtype.element_ty), mask=is_head[:, None])


@dataclass(frozen=True, slots=True)
class WindowWorkspace:
    """Output and partial softmax sums, shared by the layers of a forward. They begin as zeros, because rows outside all
    tiles are never written."""

    out: Tensor  # rows * heads * largest head_dim
    acc: Tensor
    top: Tensor  # splits * rows * heads
    total: Tensor
    splits: int

    @classmethod
    def allocate(cls, shapes: tuple[WindowShape, ...], num_rows: int, like: Tensor) -> WindowWorkspace:
        splits = num_splits(num_rows)
        vectors, width = num_rows * shapes[0].num_heads, max(shape.head_dim for shape in shapes)
        parts = splits * vectors if splits > 1 else 0
        out = torch.zeros(vectors * width, dtype=like.dtype, device=like.device)
        sums = torch.zeros(parts * (width + 2), device=like.device)
        acc, top, total = sums.split((parts * width, parts, parts))
        return cls(out, acc, top, total, splits)


def attend_window(
    qkv: Tensor, caches: tuple[Tensor, Tensor], rows: RowTables, slots: Tensor, shape: WindowShape,
    workspace: WindowWorkspace, *, is_fp8: bool = False,
) -> Rows:  # fmt: skip
    """qkv (rows, heads + 2 kv_heads, head_dim), rotated and with its KV written -> (rows, heads * head_dim); without
    fp8 a view of `workspace.out`. `caches` are one layer's (slots, 1, width); `slots` are those that rows write, or
    -1."""
    num_rows, heads, kv_heads, d = len(qkv), shape.num_heads, shape.num_kv_heads, shape.head_dim
    splits = workspace.splits
    parts = triton.cdiv(TILE_ROWS, shape.part_rows)
    out = workspace.out[: num_rows * heads * d]
    _attend_kernel[(splits, kv_heads, len(rows.tiles) * parts)](
        qkv, qkv[:, heads:], qkv[:, heads + kv_heads :], *caches, out, workspace.acc, workspace.top, workspace.total,
        rows.prefix_end, slots, rows.span_start, rows.span_end, rows.tiles, rows.pages,
        _LOG2_E, qkv.stride(0), caches[0].stride(0), rows.pages.stride(0), num_rows, shape.window,
        HEADS=heads, KV_HEADS=kv_heads, D=d, PAGE=rows.page_size, PARTS=parts, PART_ROWS=shape.part_rows,
        BLOCK_M=shape.block_m, BLOCK_N=32 if d > _WIDE_HEAD else 64, SPLITS=splits, WINDOWED=shape.window > 0,
        num_warps=8, num_stages=2,
        **pdl_options(),
    )  # fmt: skip
    if splits == 1:
        found = out.view(num_rows, heads * d)
        return Rows(*quantise_rows(found)) if is_fp8 else Rows(found)
    merged = Rows.empty(num_rows, heads * d, out, True) if is_fp8 else Rows(out.view(num_rows, heads * d))
    _merge_kernel[(num_rows,)](
        merged.values, merged.steps_or_values, workspace.acc, workspace.top, workspace.total, num_rows,
        HEADS=heads, BLOCK_H=triton.next_power_of_2(heads), D=d, SPLITS=splits, FP8=is_fp8, num_warps=8,
        **pdl_options(),
    )  # fmt: skip
    return merged
