"""The attention of a network in one launch: a tile is up to 16 rows of one sequence under one query head.

Keys are shared by a fixed number of programs, block j going to split j mod splits; the one that comes last folds the
splits in their order. So a row's numbers depend on what it sees alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quicksilver.model.kernels.attention import FORK_LEN, _fold, forked_splits, slots_of

_FORK = tl.constexpr(1 + FORK_LEN)
"""Cells of a row in the table of forks."""


@triton.jit
def _attend_tile(
    segment, row, is_row, head, kv_head, split, fork, own, qkv, k_cache, v_cache, prefix_end, span_start, span_end,
    pages, scale, max_pages,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, FORKS: tl.constexpr,
):  # fmt: skip
    """Up to 16 queries of one sequence, each a row's under a head, over this split's keys; the last split also folds
    the rows' own span."""
    STRIDE: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    n, d = tl.arange(0, BLOCK_N), tl.arange(0, D)
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
def _put_down(
    top, total, acc, row, is_row, head, split, part_acc, part_top, part_total,
    ROWS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """This split's unfinished sums."""
    d = tl.arange(0, D)
    mine = split * ROWS * HEADS + row * HEADS + head
    tl.store(part_acc + mine[:, None] * D + d[None, :], acc, mask=is_row[:, None])
    tl.store(part_top + mine, top, mask=is_row)
    tl.store(part_total + mine, total, mask=is_row)
    tl.debug_barrier()


@triton.jit
def _merge_if_last(
    row, is_row, head, arrived, awaited, part_acc, part_top, part_total, attended,
    ROWS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Who comes last of those `awaited` folds the splits of a tile under a head in their order and writes the
    output."""
    d = tl.arange(0, D)
    at = row * HEADS + head
    if tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu") == awaited - 1:
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
def num_attends(num_tiles, num_shared, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SPLITS: tl.constexpr):
    """Items of the attention part: a shared tile under a head in a split, or a forked row under a KV head in a split,
    of which it has two at most."""
    return num_shared * (HEADS * SPLITS) + (num_tiles - num_shared) * (KV_HEADS * 2)


@triton.jit
def attend_part(
    program, num_tiles, num_shared, tiles, qkv, keys, values, prefix_end, span_start, span_end, pages, scale, max_pages,
    forks, arrived, part_acc, part_top, part_total, attended,
    ROWS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    SPLITS: tl.constexpr, PROGRAMS: tl.constexpr, FORKS: tl.constexpr,
):  # fmt: skip
    m = tl.arange(0, 16)
    for item in range(program, num_shared * (HEADS * SPLITS), PROGRAMS):
        split, head, tile = item % SPLITS, (item // SPLITS) % HEADS, item // (HEADS * SPLITS)
        first, end = tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
        row = first + m
        own = forks + first * _FORK
        is_mine, awaited, fork = first < end, SPLITS, 0
        if FORKS:
            fork = tl.load(own)
            one, two = forked_splits(fork, 64, SPLITS)
            is_mine = is_mine & (split != one) & (split != two)
            awaited = _awaited(end - first, one, two, SPLITS)
        if is_mine:
            top, total, acc = _attend_tile(
                tl.load(tiles + 3 * tile), row, row < end, head + m * 0, head // (HEADS // KV_HEADS), split,
                fork, own + 1, qkv, keys, values, prefix_end, span_start, span_end, pages, scale, max_pages,
                HEADS, KV_HEADS, D, PAGE, 64, SPLITS, False,
            )  # fmt: skip
            _put_down(top, total, acc, row, row < end, head, split, part_acc, part_top, part_total, ROWS, HEADS, D)
            _merge_if_last(
                row, row < end, head, arrived + tile * HEADS + head, awaited,
                part_acc, part_top, part_total, attended, ROWS, HEADS, D, SPLITS,
            )  # fmt: skip
    if FORKS:
        _attend_forked(
            program, num_tiles, num_shared, tiles, qkv, keys, values, prefix_end, span_start, span_end, pages, scale,
            max_pages, forks, arrived, part_acc, part_top, part_total, attended,
            ROWS, HEADS, KV_HEADS, D, PAGE, SPLITS, PROGRAMS,
        )  # fmt: skip


@triton.jit
def _awaited(num_rows, one, two, SPLITS: tl.constexpr):
    """How many put down a part of a shared tile under a head: its own splits, and each row in those where it forks."""
    num_forked = tl.where(one == two, 1, 2)
    return SPLITS - num_forked + num_rows * num_forked


@triton.jit
def _attend_forked(
    program, num_tiles, num_shared, tiles, qkv, keys, values, prefix_end, span_start, span_end, pages, scale, max_pages,
    forks, arrived, part_acc, part_top, part_total, attended,
    ROWS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    SPLITS: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Each row under the heads that share keys, in the splits in which it forks."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    m = tl.arange(0, 16)
    # Behind the shared items, so that programs that had none of those begin.
    begin = (program + PROGRAMS - num_shared * (HEADS * SPLITS) % PROGRAMS) % PROGRAMS
    for item in range(begin, (num_tiles - num_shared) * (KV_HEADS * 2), PROGRAMS):
        which, kv_head, tile = item % 2, item // 2 % KV_HEADS, num_shared + item // (2 * KV_HEADS)
        row = tl.load(tiles + 3 * tile + 1)
        own = forks + row * _FORK
        fork = tl.load(own)
        one, two = forked_splits(fork, 64, SPLITS)
        split = tl.where(which == 0, one, two)
        if (which == 0) | (one != two):
            heads = kv_head * GROUP + m
            top, total, acc = _attend_tile(
                tl.load(tiles + 3 * tile), row + m * 0, m < GROUP, heads, kv_head, split, fork, own + 1,
                qkv, keys, values, prefix_end, span_start, span_end, pages, scale, max_pages,
                HEADS, KV_HEADS, D, PAGE, 64, SPLITS, True,
            )  # fmt: skip
            _put_down(
                top, total, acc, row + m * 0, m < GROUP, heads, split, part_acc, part_top, part_total, ROWS, HEADS, D
            )
            home = row // 16
            first, end = tl.load(tiles + 3 * home + 1), tl.load(tiles + 3 * home + 2)
            for g in range(GROUP):
                _merge_if_last(
                    first + m, first + m < end, kv_head * GROUP + g, arrived + home * HEADS + kv_head * GROUP + g,
                    _awaited(end - first, one, two, SPLITS),
                    part_acc, part_top, part_total, attended, ROWS, HEADS, D, SPLITS,
                )  # fmt: skip
