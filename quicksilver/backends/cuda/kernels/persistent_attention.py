"""Attention of the persistent kernel. A tile is up to 16 rows of one sequence and one query head.

Keys are split over a fixed number of CTAs, block j to split j mod splits. The last CTA merges the splits in ascending
order, so attention is batch-invariant.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quicksilver.backends.cuda.kernels.attention import MAX_TREE_DEPTH, accumulate_keys, key_slots, tree_splits

# Row stride of the table of tree slots.
_TREE_STRIDE = tl.constexpr(1 + MAX_TREE_DEPTH)


@triton.jit
def _attend_tile(
    segment, row, is_row, head, kv_head, split, tree_start, own_slots, qkv, k_cache, v_cache, prefix_end, span_start,
    span_end,
    pages, scale, max_pages,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, TREE: tl.constexpr,
):  # fmt: skip
    """Up to 16 queries of one sequence over this split's keys; the last split also includes the keys of this
    forward."""
    STRIDE: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    n, d = tl.arange(0, BLOCK_N), tl.arange(0, D)
    q = tl.load(qkv + (row * STRIDE + head * D)[:, None] + d[None, :], mask=is_row[:, None], other=0.0,
                cache_modifier=".cg")  # fmt: skip
    visible_end = tl.load(prefix_end + row, mask=is_row, other=0)
    from_row = tl.load(span_start + row, mask=is_row, other=0)
    to_row = tl.load(span_end + row, mask=is_row, other=0)
    top, total = tl.full((16,), float("-inf"), tl.float32), tl.zeros((16,), tl.float32)
    acc = tl.zeros((16, D), tl.float32)
    longest = tl.max(visible_end, 0)
    for block in tl.range(split, tl.cdiv(longest, BLOCK_N), SPLITS, num_stages=3):
        key = block * BLOCK_N + n
        slot = key_slots(segment, key, longest, tree_start, own_slots, pages, max_pages, PAGE, TREE)
        at = slot * (KV_HEADS * D) + kv_head * D
        k_tile = tl.load(k_cache + at[None, :] + d[:, None], cache_modifier=".cg")
        v_tile = tl.load(v_cache + at[:, None] + d[None, :], cache_modifier=".cg")
        is_visible = key[None, :] < visible_end[:, None]
        top, total, acc = accumulate_keys(q, k_tile, v_tile, is_visible, top, total, acc, scale)
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
            top, total, acc = accumulate_keys(q, k_tile, v_tile, is_visible, top, total, acc, scale)
    return top, total, acc


@triton.jit
def _store_partial(
    top, total, acc, row, is_row, head, split, part_acc, part_top, part_total,
    ROWS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Store this split's partial softmax."""
    d = tl.arange(0, D)
    part_at = split * ROWS * HEADS + row * HEADS + head
    tl.store(part_acc + part_at[:, None] * D + d[None, :], acc, mask=is_row[:, None])
    tl.store(part_top + part_at, top, mask=is_row)
    tl.store(part_total + part_at, total, mask=is_row)
    tl.debug_barrier()


@triton.jit
def _merge_if_last(
    row, is_row, head, arrived, part_acc, part_top, part_total, attended,
    ROWS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """The last split to finish merges all of them in ascending order and stores the output."""
    d = tl.arange(0, D)
    at = row * HEADS + head
    if tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu") == SPLITS - 1:
        tl.store(arrived, 0)
        best = tl.full((16,), float("-inf"), tl.float32)
        for part in tl.static_range(SPLITS):
            best = tl.maximum(best, _load_tops(part_top, part, at, is_row, ROWS, HEADS))
        finite_top = tl.where(best == float("-inf"), 0.0, best)
        denominator, y = tl.zeros((16,), tl.float32), tl.zeros((16, D), tl.float32)
        for part in tl.static_range(SPLITS):
            weight = tl.exp2(_load_tops(part_top, part, at, is_row, ROWS, HEADS) - finite_top)
            total, acc = _load_sums(part_total, part_acc, part, at, is_row, ROWS, HEADS, D)
            denominator += weight * total
            y += weight[:, None] * acc
        y = y / tl.where(denominator > 0, denominator, 1.0)[:, None]
        tl.store(attended + at[:, None] * D + d[None, :], y.to(attended.dtype.element_ty), mask=is_row[:, None])


@triton.jit
def _load_tops(part_top, part, at, is_row, ROWS: tl.constexpr, HEADS: tl.constexpr):
    return tl.load(part_top + part * ROWS * HEADS + at, mask=is_row, other=0.0, cache_modifier=".cg")


@triton.jit
def _load_sums(
    part_total, part_acc, part, at, is_row, ROWS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    here, d = part * ROWS * HEADS + at, tl.arange(0, D)
    total = tl.load(part_total + here, mask=is_row, other=0.0, cache_modifier=".cg")
    acc = tl.load(part_acc + here[:, None] * D + d[None, :], mask=is_row[:, None], other=0.0, cache_modifier=".cg")
    return total, acc


@triton.jit
def count_used_tiles(tiles, num_tiles, TILE_SLOTS: tl.constexpr):
    """The number of tiles with rows, which come first; at least 1, so that the phase has a CTA to wait for."""
    at = tl.arange(0, TILE_SLOTS)
    first = tl.load(tiles + 3 * at + 1, mask=at < num_tiles, other=0)
    end = tl.load(tiles + 3 * at + 2, mask=at < num_tiles, other=0)
    return tl.maximum(tl.sum((first < end).to(tl.int32), 0), 1)


@triton.jit
def num_attends(num_tiles, num_shared, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SPLITS: tl.constexpr):
    """Work items of attention: (shared tile, head, split), or (tree row, KV head)."""
    return num_shared * (HEADS * SPLITS) + (num_tiles - num_shared) * KV_HEADS


@triton.jit
def attend_phase(
    cta, layer, num_tiles, num_shared, tiles, qkv, keys, values, prefix_end, span_start, span_end, pages, scale,
    max_pages, tree_slots, arrived, part_acc, part_top, part_total, attended,
    ROWS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    SPLITS: tl.constexpr, CTAS: tl.constexpr, TREE: tl.constexpr,
):  # fmt: skip
    m = tl.arange(0, 16)
    for item in range(cta, num_shared * (HEADS * SPLITS), CTAS):
        split, head, tile = item % SPLITS, (item // SPLITS) % HEADS, item // (HEADS * SPLITS)
        first, end = tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
        row, kv_head = first + m, head // (HEADS // KV_HEADS)
        has_item = first < end
        if TREE:
            one, two = tree_splits(tl.load(tree_slots + first * _TREE_STRIDE), 64, SPLITS)
            has_item = has_item & (split != one) & (split != two)
        if has_item:
            top, total, acc = _attend_tile(
                tl.load(tiles + 3 * tile), row, row < end, head + m * 0, kv_head, split, 0, tree_slots,
                qkv, keys, values, prefix_end, span_start, span_end, pages, scale, max_pages,
                HEADS, KV_HEADS, D, PAGE, 64, SPLITS, False,
            )  # fmt: skip
            _store_partial(top, total, acc, row, row < end, head, split, part_acc, part_top, part_total, ROWS, HEADS, D)
            if TREE:
                tl.atomic_add(arrived + tile * KV_HEADS + kv_head, 1, sem="release", scope="gpu")
            else:
                _merge_if_last(
                    row, row < end, head, arrived + tile * HEADS + head,
                    part_acc, part_top, part_total, attended, ROWS, HEADS, D, SPLITS,
                )  # fmt: skip
    if TREE:
        # Continue after the shared items, so that CTAs without one of them start first.
        begin = (cta + CTAS - num_shared * (HEADS * SPLITS) % CTAS) % CTAS
        for item in range(begin, (num_tiles - num_shared) * KV_HEADS, CTAS):
            _attend_tree_row(
                layer, num_shared + item // KV_HEADS, item % KV_HEADS, tiles, qkv, keys, values, prefix_end, span_start,
                span_end, pages, scale, max_pages, tree_slots, arrived, part_acc, part_top, part_total, attended,
                ROWS, HEADS, KV_HEADS, D, PAGE, SPLITS,
            )  # fmt: skip


@triton.jit
def _attend_tree_row(
    layer, tile, kv_head, tiles, qkv, keys, values, prefix_end, span_start, span_end, pages, scale, max_pages,
    tree_slots, arrived, part_acc, part_top, part_total, attended,
    ROWS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """A tree row and the heads of one KV head: its own splits, then the merge of all splits in ascending order. CTAs
    finish their shared items before they wait here, so this cannot deadlock."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    m, d = tl.arange(0, 16), tl.arange(0, D)
    segment, row = tl.load(tiles + 3 * tile), tl.load(tiles + 3 * tile + 1)
    own_slots = tree_slots + row * _TREE_STRIDE
    tree_start = tl.load(own_slots)
    one, two = tree_splits(tree_start, 64, SPLITS)
    head, is_row, rows = kv_head * GROUP + m, m < GROUP, row + m * 0
    top_1, total_1, acc_1 = _attend_tile(
        segment, rows, is_row, head, kv_head, one, tree_start, own_slots + 1, qkv, keys, values, prefix_end,
        span_start, span_end,
        pages, scale, max_pages, HEADS, KV_HEADS, D, PAGE, 64, SPLITS, True,
    )  # fmt: skip
    top_2, total_2, acc_2 = top_1, total_1, acc_1
    if one != two:
        top_2, total_2, acc_2 = _attend_tile(
            segment, rows, is_row, head, kv_head, two, tree_start, own_slots + 1, qkv, keys, values, prefix_end,
            span_start,
            span_end, pages, scale, max_pages, HEADS, KV_HEADS, D, PAGE, 64, SPLITS, True,
        )  # fmt: skip
    num_awaited = (layer + 1) * GROUP * tl.where(one == two, SPLITS - 1, SPLITS - 2)
    while tl.load(arrived + row // 16 * KV_HEADS + kv_head, volatile=True) < num_awaited:
        pass
    tl.debug_barrier()
    at = rows * HEADS + head
    best = tl.maximum(top_1, top_2)
    for part in tl.static_range(SPLITS):
        is_shared = is_row & (part != one) & (part != two)
        best = tl.maximum(best, tl.where(is_shared, _load_tops(part_top, part, at, is_shared, ROWS, HEADS), best))
    finite_top = tl.where(best == float("-inf"), 0.0, best)
    denominator, y = tl.zeros((16,), tl.float32), tl.zeros((16, D), tl.float32)
    for part in tl.static_range(SPLITS):
        is_shared = is_row & (part != one) & (part != two)
        total, acc = _load_sums(part_total, part_acc, part, at, is_shared, ROWS, HEADS, D)
        top = _load_tops(part_top, part, at, is_shared, ROWS, HEADS)
        top, total = tl.where(part == two, top_2, top), tl.where(part == two, total_2, total)
        top, total = tl.where(part == one, top_1, top), tl.where(part == one, total_1, total)
        acc = tl.where(part == one, acc_1, tl.where(part == two, acc_2, acc))
        weight = tl.exp2(top - finite_top)
        denominator += weight * total
        y += weight[:, None] * acc
    y = y / tl.where(denominator > 0, denominator, 1.0)[:, None]
    tl.store(attended + at[:, None] * D + d[None, :], y.to(attended.dtype.element_ty), mask=is_row[:, None])
