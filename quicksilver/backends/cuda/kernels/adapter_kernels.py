"""Kernels of the row adapters: A x of every row with the adapter of its row, and B (A x).

Rows are taken in tiles of one adapter each. Ranks lie in pages of 16, so a kernel reads the ranks that an adapter has.
A row's result does not depend on the other rows of its tile: every product has the same shape and order of sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quicksilver.backends.cuda.kernels.launch import pdl_wait_and_launch, prefetch

# Ranks of one page.
PAGE_RANKS = 16
# A line of the slot table: pages of each of the four linears, then page ids.
NUM_COUNTS = 4


@triton.jit
def _first_page(line, index, slot, LINEAR: tl.constexpr):
    """The page with this index of a slot's adapter, and whether there is one."""
    is_used = (slot >= 0) & (index < tl.load(line + LINEAR, mask=slot >= 0, other=0))
    return tl.load(line + 4 + index, mask=is_used, other=0).to(tl.int64), is_used


@triton.jit
def shrink_kernel(
    x, steps, a, row_tiles, lines, low, K, depth, num_rows, page_stride, line_len,
    LINEAR: tl.constexpr, TILE: tl.constexpr, BLOCK_K: tl.constexpr, RANK: tl.constexpr, FP8: tl.constexpr,
    GROUP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """low[split, row] = A x over one K range, for every `num_programs(1)`-th page of the tile's adapter. With FP8, x
    has a scale per `GROUP` columns."""
    split = tl.program_id(2)
    at_tile = row_tiles + tl.program_id(0) * (TILE + 1)
    slot = tl.load(at_tile)
    if PDL:
        # Tiles, slots and pools are written by copies before the forward, so they are read before the wait.
        page, is_used = _first_page(lines + slot * line_len, tl.program_id(1), slot, LINEAR)
        own = tl.minimum(split * depth + tl.arange(0, 8) * 64, K - 1)
        if is_used:
            prefetch(a + page * page_stride + tl.arange(0, 16)[:, None] * K + own[None, :])
    pdl_wait_and_launch(PDL)
    if slot >= 0:
        line = lines + slot * line_len
        count = tl.load(line + LINEAR)
        row = tl.load(at_tile + 1 + tl.arange(0, TILE))
        is_row = (row >= 0)[:, None]
        k, n = tl.arange(0, BLOCK_K), tl.arange(0, 16)
        end = tl.minimum(split * depth + depth, K)
        x_rows = x + row.to(tl.int64)[:, None] * K
        for index in range(tl.program_id(1), count, tl.num_programs(1)):
            a_rows = a + tl.load(line + 4 + index).to(tl.int64) * page_stride + n[:, None] * K
            acc = tl.zeros((TILE, 16), tl.float32)
            for start in range(split * depth, end, BLOCK_K):
                at = start + k
                is_in = (at < end)[None, :]
                a_tile = tl.load(a_rows + at[None, :], mask=is_in, other=0.0)
                x_tile = tl.load(x_rows + at[None, :], mask=is_row & is_in, other=0.0)
                if FP8:
                    step = tl.load(steps + start // GROUP * num_rows + row, mask=row >= 0, other=0.0)
                    product = tl.dot(x_tile.to(a_tile.dtype), tl.trans(a_tile), input_precision="ieee")
                    acc += product * step[:, None]
                else:
                    acc = tl.dot(x_tile, tl.trans(a_tile.to(x_tile.dtype)), acc, input_precision="ieee")
            out = low + (split * num_rows + row).to(tl.int64)[:, None] * RANK + index * 16 + n[None, :]
            tl.store(out, acc, mask=is_row)


@triton.jit
def expand_kernel(
    low, b, row_tiles, lines, y, N, num_rows, page_stride, line_len,
    LINEAR: tl.constexpr, TILE: tl.constexpr, BLOCK_N: tl.constexpr, RANK: tl.constexpr, SPLITS: tl.constexpr,
    ADDS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y[row] = B (A x), or with ADDS y[row] += B (A x). Rows without an adapter get zeros, or stay."""
    at_tile = row_tiles + tl.program_id(0) * (TILE + 1)
    slot = tl.load(at_tile)
    if PDL:
        page, is_used = _first_page(lines + slot * line_len, 0, slot, LINEAR)
        own = tl.minimum(tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N // 64) * 64, N - 1)
        if is_used:
            prefetch(b + page * page_stride + tl.arange(0, 16)[:, None] * N + own[None, :])
    pdl_wait_and_launch(PDL)
    if slot >= (0 if ADDS else -1):
        row = tl.load(at_tile + 1 + tl.arange(0, TILE))
        n, r = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, 16)
        is_row, is_column = (row >= 0)[:, None], (n < N)[None, :]
        line = lines + slot * line_len
        count = tl.load(line + LINEAR, mask=slot >= 0, other=0)
        acc = tl.zeros((TILE, BLOCK_N), tl.float32)
        for index in range(0, count):
            b_rows = b + tl.load(line + 4 + index).to(tl.int64) * page_stride + r[:, None] * N
            b_tile = tl.load(b_rows + n[None, :], mask=is_column, other=0.0)
            source = low + row.to(tl.int64)[:, None] * RANK + index * 16 + r[None, :]
            total = tl.load(source, mask=is_row, other=0.0)
            for split in tl.static_range(1, SPLITS):
                total += tl.load(source + split * num_rows * RANK, mask=is_row, other=0.0)
            acc = tl.dot(total.to(b_tile.dtype), b_tile, acc, input_precision="ieee")
        target = y + row.to(tl.int64)[:, None] * N + n[None, :]
        if ADDS:
            acc += tl.load(target, mask=is_row & is_column, other=0.0).to(tl.float32)
        tl.store(target, acc.to(y.dtype.element_ty), mask=is_row & is_column)
