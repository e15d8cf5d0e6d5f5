"""A small network's forward in one launch: programs that stay on the chip and meet between the parts of a layer.

A launch costs more than the work of a small layer; a meeting costs about a microsecond. Rows go in tiles of 16 whatever
their number, and nothing is cut along the depth, so a row's numbers depend on what it sees, never on its company. Tiles
of canvas rows read weights with the adapter merged in. All programs must be on the chip at the same time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quicksilver.model.kernels.attention import _fold
from quicksilver.model.kernels.launch import fetch_ahead

ROW_TILE = 16
"""Rows and columns of a tile: the smallest that the matrix unit takes."""
WHOLE_SPLITS = 4
"""Programs that share the keys of one head and tile."""


@triton.jit
def _meet(bell, turn, PROGRAMS: tl.constexpr):
    """Goes on when every program has come; what they stored before is then visible past the first-level cache."""
    tl.debug_barrier()
    tl.atomic_add(bell, 1, sem="release", scope="gpu")
    while tl.load(bell, volatile=True) < turn * PROGRAMS:
        pass
    tl.debug_barrier()


@triton.jit
def _leave(bell, PROGRAMS: tl.constexpr):
    """The last program to leave sets the bell back for the next launch."""
    tl.debug_barrier()
    if tl.atomic_add(bell + 1, 1, sem="acq_rel", scope="gpu") == PROGRAMS - 1:
        tl.store(bell, 0)
        tl.store(bell + 1, 0)


@triton.jit
def _pair(
    x, w, first, second, r, gate, plane,
    K: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, CANVAS: tl.constexpr,
):  # fmt: skip
    """Two (16 columns, 16 rows) products; rows that wear the adapter take theirs from the second set of weights."""
    k = tl.arange(0, BLOCK_K)
    worn = tl.load(gate + r) if CANVAS else r * 0
    a = tl.zeros((16, 16), tl.float32)
    b = tl.zeros((16, 16), tl.float32)
    for kind in range(tl.min(worn, 0), tl.max(worn, 0) + 1):
        at_x = x + r[:, None] * K + k[None, :]
        at_a = w + kind * plane + first[:, None] * K + k[None, :]
        at_b = w + kind * plane + second[:, None] * K + k[None, :]
        c = tl.zeros((16, 16), tl.float32)
        d = tl.zeros((16, 16), tl.float32)
        for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
            x_tile = tl.trans(tl.load(at_x + start, cache_modifier=".cg"))
            c = tl.dot(tl.load(at_a + start), x_tile, c, input_precision="ieee")
            d = tl.dot(tl.load(at_b + start), x_tile, d, input_precision="ieee")
        a = tl.where((worn == kind)[None, :], c, a)
        b = tl.where((worn == kind)[None, :], d, b)
    return a, b


@triton.jit
def _single(
    x, w, first, r, gate, plane,
    K: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, CANVAS: tl.constexpr,
):  # fmt: skip
    k = tl.arange(0, BLOCK_K)
    worn = tl.load(gate + r) if CANVAS else r * 0
    a = tl.zeros((16, 16), tl.float32)
    for kind in range(tl.min(worn, 0), tl.max(worn, 0) + 1):
        at_x = x + r[:, None] * K + k[None, :]
        at_a = w + kind * plane + first[:, None] * K + k[None, :]
        c = tl.zeros((16, 16), tl.float32)
        for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
            x_tile = tl.trans(tl.load(at_x + start, cache_modifier=".cg"))
            c = tl.dot(tl.load(at_a + start), x_tile, c, input_precision="ieee")
        a = tl.where((worn == kind)[None, :], c, a)
    return a


@triton.jit
def _divisor(squares, r, eps, ROWS: tl.constexpr, DIM: tl.constexpr, TILES: tl.constexpr):
    tile = tl.arange(0, TILES)
    at = squares + tile[:, None] * ROWS + r[None, :]
    total = tl.sum(tl.load(at, mask=(tile < DIM // 16)[:, None], other=0.0, cache_modifier=".cg"), 0)
    return tl.rsqrt(total / DIM + eps)[None, :]


@triton.jit
def _embed_rows(
    program, tokens, masks, token_ids, mask_index, gain, x, y, squares, num_masks,
    ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr,
    CANVAS: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    d, tile = tl.arange(0, BLOCK), tl.arange(0, TILES)
    for row in range(program, ROWS, PROGRAMS):
        source = tokens + tl.load(token_ids + row).to(tl.int64) * DIM
        if CANVAS:
            index = tl.load(mask_index + row)
            if index >= 0:
                source = masks + tl.minimum(index, num_masks - 1).to(tl.int64) * DIM
        wide = tl.load(source + d, mask=d < DIM, other=0.0).to(tl.float32)
        tl.store(x + row * DIM + d, wide.to(x.dtype.element_ty), mask=d < DIM)
        gains = tl.load(gain + d, mask=d < DIM, other=0.0).to(tl.float32)
        tl.store(y + row * DIM + d, (wide * gains).to(y.dtype.element_ty), mask=d < DIM)
        total = tl.where(tile == 0, tl.sum(wide * wide, 0), 0.0)
        tl.store(squares + tile * ROWS + row, total, mask=tile < DIM // 16)


@triton.jit
def _qkv_tile(
    column, r, left, right, bias, qkv, k_cache, v_cache, angles, positions, slots,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """16 columns of the left half of a head and their partners of the right: rotate, store, keep keys and values."""
    HALF: tl.constexpr = D // 2
    head = column // (HALF // 16)
    i = (column % (HALF // 16)) * 16 + tl.arange(0, 16)
    dtype = qkv.dtype.element_ty
    if BIAS:
        left += tl.load(bias + head * D + i).to(tl.float32)[:, None]
        right += tl.load(bias + head * D + HALF + i).to(tl.float32)[:, None]
    left, right = left.to(dtype).to(tl.float32), right.to(dtype).to(tl.float32)
    if head < HEADS + KV_HEADS:
        turn = angles + (tl.load(positions + r).to(tl.int64) * D)[None, :] + i[:, None]
        cos, sin = tl.load(turn), tl.load(turn + HALF)
        left, right = left * cos - right * sin, right * cos + left * sin
    at = qkv + r[None, :] * ((HEADS + 2 * KV_HEADS) * D) + head * D + i[:, None]
    tl.store(at, left.to(dtype))
    tl.store(at + HALF, right.to(dtype))
    if head >= HEADS:
        slot = tl.load(slots + r).to(tl.int64)
        is_kept = (slot >= 0)[None, :] & (i >= 0)[:, None]
        store = v_cache if head >= HEADS + KV_HEADS else k_cache
        to = store + (slot * (KV_HEADS * D) + ((head - HEADS) % KV_HEADS) * D)[None, :] + i[:, None]
        tl.store(to, left.to(dtype), mask=is_kept)
        tl.store(to + HALF, right.to(dtype), mask=is_kept)


@triton.jit
def _attend_tile(
    segment, row, is_row, head, split, qkv, k_cache, v_cache, prefix_end, span_start, span_end, pages, scale, max_pages,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
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
        page = tl.load(pages + segment * max_pages + key // PAGE, mask=key < longest, other=0)
        at = (tl.maximum(page, 0).to(tl.int64) * PAGE + key % PAGE) * (KV_HEADS * D) + kv_head * D
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
def _add_tile(column, r, a, x, y, squares, gain, ROWS: tl.constexpr, DIM: tl.constexpr):
    """Onto the residual stream, and what the norm behind it needs."""
    i = column * 16 + tl.arange(0, 16)
    at = r[None, :] * DIM + i[:, None]
    dtype = x.dtype.element_ty
    sum_ = (a.to(dtype).to(tl.float32) + tl.load(x + at, cache_modifier=".cg").to(tl.float32)).to(dtype)
    tl.store(x + at, sum_)
    wide = sum_.to(tl.float32)
    tl.store(y + at, (wide * tl.load(gain + i).to(tl.float32)[:, None]).to(dtype))
    tl.store(squares + column * ROWS + r, tl.sum(wide * wide, 0))


@triton.jit
def _fetch_columns(
    program, w, plane, second,
    COLUMNS: tl.constexpr, K: tl.constexpr, LINES: tl.constexpr, SETS: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """Ask for the weights of a later part, one tile of columns a program."""
    if program < COLUMNS * SETS:
        base = w + (program // COLUMNS) * plane
        rows = ((program % COLUMNS) * 16 + tl.arange(0, 16)).to(tl.int64)
        fetch_ahead(base, rows, K, 0, LINES, True)
        if PAIR:
            fetch_ahead(base, rows + second, K, 0, LINES, True)


@triton.jit
def _fetch_layer(
    program, wq_next, wo, wg, wd, has_next,
    LAYERS: tl.constexpr, DIM: tl.constexpr, FFN: tl.constexpr, Q: tl.constexpr, N_QKV: tl.constexpr,
    SETS: tl.constexpr,
):  # fmt: skip
    _fetch_columns(program, wo, LAYERS * DIM * Q, 0, DIM // 16, Q, 16, SETS, False)
    _fetch_columns(program, wg, LAYERS * 2 * FFN * DIM, FFN, FFN // 16, DIM, 16, SETS, True)
    _fetch_columns(program, wd, LAYERS * DIM * FFN, 0, DIM // 16, FFN, 32, SETS, False)
    if has_next:
        _fetch_columns(program, wq_next, LAYERS * N_QKV * DIM, 0, N_QKV // 16, DIM, 16, SETS, False)


@triton.jit
def _qkv_part(
    program, y, w, plane, gate, squares, eps, bias, qkv, keys, values, angles, positions, slots,
    ROWS: tl.constexpr, DIM: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr,
    TILES: tl.constexpr, KD: tl.constexpr, CANVAS: tl.constexpr, PROGRAMS: tl.constexpr, STAGES: tl.constexpr,
    BIAS: tl.constexpr,
):  # fmt: skip
    m = tl.arange(0, 16)
    HALF: tl.constexpr = D // 2
    COLUMNS: tl.constexpr = (HEADS + 2 * KV_HEADS) * D // 32
    for item in range(program, COLUMNS * (ROWS // 16), PROGRAMS):
        column, r = item % COLUMNS, (item // COLUMNS) * 16 + m
        first = ((column // (HALF // 16)) * D + (column % (HALF // 16)) * 16 + m).to(tl.int64)
        a, b = _pair(y, w, first, first + HALF, r, gate, plane, DIM, KD, STAGES, CANVAS)
        shrink = _divisor(squares, r, eps, ROWS, DIM, TILES)
        _qkv_tile(
            column, r, a * shrink, b * shrink, bias, qkv, keys, values, angles, positions, slots,
            HEADS, KV_HEADS, D, BIAS,
        )  # fmt: skip


@triton.jit
def _attend_part(
    program, num_tiles, tiles, qkv, keys, values, prefix_end, span_start, span_end, pages, scale, max_pages,
    arrived, part_acc, part_top, part_total, attended,
    ROWS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    SPLITS: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    m = tl.arange(0, 16)
    for item in range(program, num_tiles * (HEADS * SPLITS), PROGRAMS):
        split, head, tile = item % SPLITS, (item // SPLITS) % HEADS, item // (HEADS * SPLITS)
        first, end = tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
        row = first + m
        if first < end:
            top, total, acc = _attend_tile(
                tl.load(tiles + 3 * tile), row, row < end, head, split, qkv, keys, values,
                prefix_end, span_start, span_end, pages, scale, max_pages, HEADS, KV_HEADS, D, PAGE, 64, SPLITS,
            )  # fmt: skip
            _merge_tile(
                top, total, acc, row, row < end, head, split, arrived + tile * HEADS + head,
                part_acc, part_top, part_total, attended, ROWS, HEADS, D, SPLITS,
            )  # fmt: skip


@triton.jit
def _gate_part(
    program, y, w, plane, gate, squares, eps, ffn,
    ROWS: tl.constexpr, DIM: tl.constexpr, FFN: tl.constexpr, TILES: tl.constexpr, KD: tl.constexpr,
    CANVAS: tl.constexpr, PROGRAMS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up of the normed stream."""
    m = tl.arange(0, 16)
    COLUMNS: tl.constexpr = FFN // 16
    for item in range(program, COLUMNS * (ROWS // 16), PROGRAMS):
        column, r = item % COLUMNS, (item // COLUMNS) * 16 + m
        first = (column * 16 + m).to(tl.int64)
        a, b = _pair(y, w, first, first + FFN, r, gate, plane, DIM, KD, STAGES, CANVAS)
        shrink = _divisor(squares, r, eps, ROWS, DIM, TILES)
        a, b = a * shrink, b * shrink
        out = a / (1.0 + tl.exp(-a)) * b
        tl.store(ffn + r[None, :] * FFN + (column * 16 + m)[:, None], out.to(ffn.dtype.element_ty))


@triton.jit
def _add_part(
    program, source, w, plane, gate, x, y, squares, gain,
    ROWS: tl.constexpr, DIM: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr,
    CANVAS: tl.constexpr, PROGRAMS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The residual stream plus W source."""
    m = tl.arange(0, 16)
    COLUMNS: tl.constexpr = DIM // 16
    for item in range(program, COLUMNS * (ROWS // 16), PROGRAMS):
        column, r = item % COLUMNS, (item // COLUMNS) * 16 + m
        a = _single(source, w, (column * 16 + m).to(tl.int64), r, gate, plane, K, BLOCK_K, STAGES, CANVAS)
        _add_tile(column, r, a, x, y, squares, gain, ROWS, DIM)


@triton.jit
def network_kernel(
    tokens, masks, token_ids, mask_index, gate, positions, slots,
    prefix_end, span_start, span_end, tiles, pages,
    w_qkv, w_o, w_gu, w_dn, gains, bias, angles, k_cache, v_cache,
    x, y, squares, qkv, attended, ffn, part_acc, part_top, part_total, bell, arrived,
    eps, scale, max_pages, num_tiles, num_masks, cache_stride,
    ROWS: tl.constexpr, LAYERS: tl.constexpr, DIM: tl.constexpr, FFN: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK: tl.constexpr, TILES: tl.constexpr, KD: tl.constexpr, KQ: tl.constexpr, KF: tl.constexpr,
    CANVAS: tl.constexpr, SPLITS: tl.constexpr, PROGRAMS: tl.constexpr, STAGES: tl.constexpr, FETCH: tl.constexpr,
    BIAS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    Q: tl.constexpr = HEADS * D
    N_QKV: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    SETS: tl.constexpr = 2 if CANVAS else 1
    _embed_rows(program, tokens, masks, token_ids, mask_index, gains, x, y, squares, num_masks,
                ROWS, DIM, BLOCK, TILES, CANVAS, PROGRAMS)  # fmt: skip
    turn = 1
    _meet(bell, turn, PROGRAMS)
    for layer in range(LAYERS):
        at = tl.cast(layer, tl.int64)
        wq, wo = w_qkv + at * (N_QKV * DIM), w_o + at * (DIM * Q)
        wg, wd = w_gu + at * (2 * FFN * DIM), w_dn + at * (DIM * FFN)
        keys, values, gain = k_cache + at * cache_stride, v_cache + at * cache_stride, gains + 2 * at * DIM
        if FETCH:
            _fetch_layer(program, wq + N_QKV * DIM, wo, wg, wd, layer + 1 < LAYERS, LAYERS, DIM, FFN, Q, N_QKV, SETS)
        _qkv_part(program, y, wq, LAYERS * N_QKV * DIM, gate, squares, eps, bias + at * N_QKV, qkv, keys, values,
                  angles, positions, slots, ROWS, DIM, HEADS, KV_HEADS, D, TILES, KD, CANVAS, PROGRAMS, STAGES,
                  BIAS)  # fmt: skip
        _meet(bell, turn + 1, PROGRAMS)
        _attend_part(program, num_tiles, tiles, qkv, keys, values, prefix_end, span_start, span_end, pages, scale,
                     max_pages, arrived, part_acc, part_top, part_total, attended,
                     ROWS, HEADS, KV_HEADS, D, PAGE, SPLITS, PROGRAMS)  # fmt: skip
        _meet(bell, turn + 2, PROGRAMS)
        _add_part(program, attended, wo, LAYERS * DIM * Q, gate, x, y, squares, gain + DIM,
                  ROWS, DIM, Q, KQ, CANVAS, PROGRAMS, STAGES)  # fmt: skip
        _meet(bell, turn + 3, PROGRAMS)
        _gate_part(program, y, wg, LAYERS * 2 * FFN * DIM, gate, squares, eps, ffn,
                   ROWS, DIM, FFN, TILES, KD, CANVAS, PROGRAMS, STAGES)  # fmt: skip
        _meet(bell, turn + 4, PROGRAMS)
        _add_part(program, ffn, wd, LAYERS * DIM * FFN, gate, x, y, squares, gain + 2 * DIM,
                  ROWS, DIM, FFN, KF, CANVAS, PROGRAMS, STAGES)  # fmt: skip
        turn += 5
        _meet(bell, turn, PROGRAMS)
    _leave(bell, PROGRAMS)
