"""The attention of a network in one launch: a tile is up to 16 rows of one sequence under one query head.

Keys are shared by a fixed number of programs, block j going to split j mod splits; the one that comes last folds the
splits in their order. So a row's numbers depend on what it sees alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quicksilver.model.kernels.attention import _fold, slots_of


@triton.jit
def _attend_tile(
    segment, row, is_row, head, split, fork, own, qkv, k_cache, v_cache, prefix_end, span_start, span_end, pages, scale,
    max_pages,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, FORKS: tl.constexpr,
):  # fmt: skip
    """One query head of up to 16 rows over this split's keys; the last split also folds the rows' own span."""
    STRIDE: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    n, d = tl.arange(0, BLOCK_N), tl.arange(0, D)
    kv_head = head // (HEADS // KV_HEADS)
    q = tl.load(qkv + (row * STRIDE + head * D)[:, None] + d[None, :], mask=is_row[:, None], other=0.0,
                cache_modifier=".cg")  # fmt: skip
    sees_to = tl.load(prefix_end + row, mask=is_row, other=0)
    from_row = tl.load(span_start + row, mask=is_row, other=0)
    to_row = tl.load(span_end + row, mask=is_row, other=0)
    top, total = tl.full((16,), float("-inf"), tl.float32), tl.zeros((16,), tl.float32)
    acc = tl.zeros((16, D), tl.float32)
    longest = tl.max(sees_to, 0)
    for block in tl.range(split, tl.cdiv(longest, BLOCK_N), SPLITS, num_stages=3):
        key = block * BLOCK_N + n
        slot = slots_of(segment, key, longest, fork, own, pages, max_pages, PAGE, FORKS)
        at = slot * (KV_HEADS * D) + kv_head * D
        k_tile = tl.load(k_cache + at[None, :] + d[:, None], cache_modifier=".cg")
        v_tile = tl.load(v_cache + at[:, None] + d[None, :], cache_modifier=".cg")
        is_visible = key[None, :] < sees_to[:, None]
        top, total, acc = _fold(q, k_tile, v_tile, is_visible, top, total, acc, scale)
    if split == SPLITS - 1:
        has_span = to_row > from_row
        low = tl.min(tl.where(has_span, from_row, 2147483647), 0)
        high = tl.max(tl.where(has_span, to_row, 0), 0)
        for start in tl.range(low, high, BLOCK_N, num_stages=1):
            other = start + n
            at = other * STRIDE + (HEADS + kv_head) * D
            is_there = other < high
            k_tile = tl.load(qkv + at[None, :] + d[:, None], mask=is_there[None, :], other=0.0, cache_modifier=".cg")
            v_tile = tl.load(qkv + KV_HEADS * D + at[:, None] + d[None, :], mask=is_there[:, None], other=0.0,
                             cache_modifier=".cg")  # fmt: skip
            is_visible = (other[None, :] >= from_row[:, None]) & (other[None, :] < to_row[:, None])
            top, total, acc = _fold(q, k_tile, v_tile, is_visible, top, total, acc, scale)
    return top, total, acc


@triton.jit
def _merge_tile(
    top, total, acc, row, is_row, head, split, arrived, part_acc, part_top, part_total, attended,
    ROWS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Put this split down; the one that finds all others there folds them in their order and writes the output."""
    d = tl.arange(0, D)
    at = row * HEADS + head
    mine = split * ROWS * HEADS + at
    tl.store(part_acc + mine[:, None] * D + d[None, :], acc, mask=is_row[:, None])
    tl.store(part_top + mine, top, mask=is_row)
    tl.store(part_total + mine, total, mask=is_row)
    tl.debug_barrier()
    if tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu") == SPLITS - 1:
        tl.store(arrived, 0)
        best = tl.full((16,), float("-inf"), tl.float32)
        for part in tl.static_range(SPLITS):
            best = tl.maximum(best, tl.load(part_top + part * ROWS * HEADS + at, mask=is_row, other=0.0,
                                            cache_modifier=".cg"))  # fmt: skip
        safe = tl.where(best == float("-inf"), 0.0, best)
        whole, y = tl.zeros((16,), tl.float32), tl.zeros((16, D), tl.float32)
        for part in tl.static_range(SPLITS):
            here = part * ROWS * HEADS + at
            weight = tl.exp2(tl.load(part_top + here, mask=is_row, other=0.0, cache_modifier=".cg") - safe)
            whole += weight * tl.load(part_total + here, mask=is_row, other=0.0, cache_modifier=".cg")
            values = tl.load(part_acc + here[:, None] * D + d[None, :], mask=is_row[:, None], other=0.0,
                             cache_modifier=".cg")  # fmt: skip
            y += weight[:, None] * values
        y = y / tl.where(whole > 0, whole, 1.0)[:, None]
        tl.store(attended + at[:, None] * D + d[None, :], y.to(attended.dtype.element_ty), mask=is_row[:, None])


@triton.jit
def used_tiles(tiles, num_tiles, SLOTS: tl.constexpr):
    """How many tiles have rows; those come first. At least one, so that somebody attends and is waited for."""
    at = tl.arange(0, SLOTS)
    first = tl.load(tiles + 3 * at + 1, mask=at < num_tiles, other=0)
    end = tl.load(tiles + 3 * at + 2, mask=at < num_tiles, other=0)
    return tl.maximum(tl.sum((first < end).to(tl.int32), 0), 1)


@triton.jit
def attend_part(
    program, num_tiles, tiles, qkv, keys, values, prefix_end, span_start, span_end, pages, scale, max_pages,
    forks, arrived, part_acc, part_top, part_total, attended,
    ROWS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    SPLITS: tl.constexpr, PROGRAMS: tl.constexpr, FORKS: tl.constexpr,
):  # fmt: skip
    m = tl.arange(0, 16)
    for item in range(program, num_tiles * (HEADS * SPLITS), PROGRAMS):
        split, head, tile = item % SPLITS, (item // SPLITS) % HEADS, item // (HEADS * SPLITS)
        first, end = tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
        row = first + m
        if first < end:
            fork = tl.load(forks + 2 * tile) if FORKS else 0
            own = tl.load(forks + 2 * tile + 1).to(tl.int64) if FORKS else 0
            top, total, acc = _attend_tile(
                tl.load(tiles + 3 * tile), row, row < end, head, split, fork, own, qkv, keys, values,
                prefix_end, span_start, span_end, pages, scale, max_pages, HEADS, KV_HEADS, D, PAGE, 64, SPLITS,
                FORKS,
            )  # fmt: skip
            _merge_tile(
                top, total, acc, row, row < end, head, split, arrived + tile * HEADS + head,
                part_acc, part_top, part_total, attended, ROWS, HEADS, D, SPLITS,
            )  # fmt: skip
