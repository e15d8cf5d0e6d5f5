"""The linears of a network in one launch. An item is 16 columns of a matrix by a tile of rows; nothing is cut along the
depth, so a row's numbers do not depend on its company.

Canvas rows take theirs from a second set of weights with the adapter merged in. A tile of both kinds reads both sets,
one after the other, or, where it is the only tile, in two items side by side, each of which stores its own rows. What
an item needs beside weights is asked for before its products, so that nobody waits for it behind them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quicksilver.backends.cuda.kernels.launch import fetch_ahead


@triton.jit
def _kinds(gate, r, kind, CANVAS: tl.constexpr, KINDS: tl.constexpr):
    """-> which rows wear the adapter, the first and last set of weights to read, and the rows that this item stores."""
    worn = tl.load(gate + r) if CANVAS else r * 0
    if KINDS == 2:
        low, high, is_mine = kind, kind, worn == kind
    else:
        low, high, is_mine = tl.min(worn, 0), tl.max(worn, 0), r >= 0
    return worn, low, high, is_mine


@triton.jit
def _pair(
    x, w, first, second, r, worn, low, high, plane,
    K: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Two (16 columns, T rows) products; rows that wear the adapter take theirs from the second set of weights."""
    k = tl.arange(0, BLOCK_K)
    a = tl.zeros((16, T), tl.float32)
    b = tl.zeros((16, T), tl.float32)
    for kind in range(low, high + 1):
        at_x = x + r[:, None] * K + k[None, :]
        at_a = w + kind * plane + first[:, None] * K + k[None, :]
        at_b = w + kind * plane + second[:, None] * K + k[None, :]
        c, d = tl.zeros((16, T), tl.float32), tl.zeros((16, T), tl.float32)
        for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
            x_tile = tl.trans(tl.load(at_x + start, cache_modifier=".cg"))
            c = tl.dot(tl.load(at_a + start), x_tile, c, input_precision="ieee")
            d = tl.dot(tl.load(at_b + start), x_tile, d, input_precision="ieee")
        a = tl.where((worn == kind)[None, :], c, a)
        b = tl.where((worn == kind)[None, :], d, b)
    return a, b


@triton.jit
def _single(
    x, w, first, r, worn, low, high, plane,
    K: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    k = tl.arange(0, BLOCK_K)
    a = tl.zeros((16, T), tl.float32)
    for kind in range(low, high + 1):
        at_x = x + r[:, None] * K + k[None, :]
        at_w = w + kind * plane + first[:, None] * K + k[None, :]
        c = tl.zeros((16, T), tl.float32)
        for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
            x_tile = tl.trans(tl.load(at_x + start, cache_modifier=".cg"))
            c = tl.dot(tl.load(at_w + start), x_tile, c, input_precision="ieee")
        a = tl.where((worn == kind)[None, :], c, a)
    return a


@triton.jit
def _squares(squares, r, ROWS: tl.constexpr, SQUARES: tl.constexpr, TILES: tl.constexpr):
    tile = tl.arange(0, TILES)
    at = squares + tile[:, None] * ROWS + r[None, :]
    return tl.load(at, mask=(tile < SQUARES)[:, None], other=0.0, cache_modifier=".cg")


@triton.jit
def _divisor(parts, DIM: tl.constexpr, eps):
    """Sums of fp32 numbers of like size are exact in fp64: how threads share them, which goes by the rows of a tile,
    changes nothing."""
    return tl.rsqrt(tl.sum(parts.to(tl.float64), 0).to(tl.float32) / DIM + eps)[None, :]


@triton.jit
def _qkv_tile(
    column, r, is_mine, left, right, bias, qkv, k_cache, v_cache, angles, position, slot,
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
        turn = angles + (position.to(tl.int64) * D)[None, :] + i[:, None]
        cos, sin = tl.load(turn), tl.load(turn + HALF)
        left, right = left * cos - right * sin, right * cos + left * sin
    at = qkv + r[None, :] * ((HEADS + 2 * KV_HEADS) * D) + head * D + i[:, None]
    is_stored = is_mine[None, :] & (i >= 0)[:, None]
    tl.store(at, left.to(dtype), mask=is_stored)
    tl.store(at + HALF, right.to(dtype), mask=is_stored)
    if head >= HEADS:
        is_kept = (slot >= 0)[None, :] & is_stored
        store = v_cache if head >= HEADS + KV_HEADS else k_cache
        to = store + (slot * (KV_HEADS * D) + ((head - HEADS) % KV_HEADS) * D)[None, :] + i[:, None]
        tl.store(to, left.to(dtype), mask=is_kept)
        tl.store(to + HALF, right.to(dtype), mask=is_kept)


@triton.jit
def qkv_part(
    program, y, w, plane, gate, squares, eps, bias, qkv, keys, values, angles, positions, slots,
    ROWS: tl.constexpr, DIM: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr,
    TILES: tl.constexpr, KD: tl.constexpr, CANVAS: tl.constexpr, KINDS: tl.constexpr,
    T: tl.constexpr, PROGRAMS: tl.constexpr, STAGES: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    m, n = tl.arange(0, 16), tl.arange(0, T)
    HALF: tl.constexpr = D // 2
    COLUMNS: tl.constexpr = (HEADS + 2 * KV_HEADS) * D // 32
    PLACES: tl.constexpr = COLUMNS * (ROWS // T)
    for item in range(program, PLACES * KINDS, PROGRAMS):
        column, r = item % COLUMNS, (item % PLACES) // COLUMNS * T + n
        worn, low, high, is_mine = _kinds(gate, r, item // PLACES, CANVAS, KINDS)
        parts = _squares(squares, r, ROWS, DIM // 16, TILES)
        first = ((column // (HALF // 16)) * D + (column % (HALF // 16)) * 16 + m).to(tl.int64)
        position, slot = tl.load(positions + r), tl.load(slots + r).to(tl.int64)
        a, b = _pair(y, w, first, first + HALF, r, worn, low, high, plane, DIM, KD, STAGES, T)
        shrink = _divisor(parts, DIM, eps)
        _qkv_tile(
            column, r, is_mine, a * shrink, b * shrink, bias, qkv, keys, values, angles, position, slot,
            HEADS, KV_HEADS, D, BIAS,
        )  # fmt: skip


@triton.jit
def gate_part(
    program, y, w, plane, gate, squares, eps, ffn,
    ROWS: tl.constexpr, DIM: tl.constexpr, FFN: tl.constexpr, TILES: tl.constexpr, KD: tl.constexpr,
    CANVAS: tl.constexpr, KINDS: tl.constexpr, T: tl.constexpr, PROGRAMS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up of the normed stream."""
    m, n = tl.arange(0, 16), tl.arange(0, T)
    COLUMNS: tl.constexpr = FFN // 16
    PLACES: tl.constexpr = COLUMNS * (ROWS // T)
    for item in range(program, PLACES * KINDS, PROGRAMS):
        column, r = item % COLUMNS, (item % PLACES) // COLUMNS * T + n
        worn, low, high, is_mine = _kinds(gate, r, item // PLACES, CANVAS, KINDS)
        parts = _squares(squares, r, ROWS, DIM // 16, TILES)
        i = column * 16 + m
        first = i.to(tl.int64)
        a, b = _pair(y, w, first, first + FFN, r, worn, low, high, plane, DIM, KD, STAGES, T)
        shrink = _divisor(parts, DIM, eps)
        a, b = a * shrink, b * shrink
        out = (a / (1.0 + tl.exp(-a)) * b).to(ffn.dtype.element_ty)
        tl.store(ffn + r[None, :] * FFN + i[:, None], out, mask=is_mine[None, :] & (i >= 0)[:, None])


@triton.jit
def add_part(
    program, source, w, plane, gate, x, y, squares, gain,
    ROWS: tl.constexpr, DIM: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr,
    CANVAS: tl.constexpr, KINDS: tl.constexpr, T: tl.constexpr, PROGRAMS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The residual stream plus W source, and what the norm behind it needs."""
    m, n = tl.arange(0, 16), tl.arange(0, T)
    COLUMNS: tl.constexpr = DIM // 16
    PLACES: tl.constexpr = COLUMNS * (ROWS // T)
    dtype = x.dtype.element_ty
    for item in range(program, PLACES * KINDS, PROGRAMS):
        column, r = item % COLUMNS, (item % PLACES) // COLUMNS * T + n
        worn, low, high, is_mine = _kinds(gate, r, item // PLACES, CANVAS, KINDS)
        i = column * 16 + m
        at = r[None, :] * DIM + i[:, None]
        gains, old = tl.load(gain + i).to(tl.float32), tl.load(x + at, cache_modifier=".cg").to(tl.float32)
        a = _single(source, w, i.to(tl.int64), r, worn, low, high, plane, K, BLOCK_K, STAGES, T)
        is_stored = is_mine[None, :] & (i >= 0)[:, None]
        sum_ = (a.to(dtype).to(tl.float32) + old).to(dtype)
        tl.store(x + at, sum_, mask=is_stored)
        wide = sum_.to(tl.float32)
        tl.store(y + at, (wide * gains[:, None]).to(dtype), mask=is_stored)
        tl.store(squares + column * ROWS + r, tl.sum(wide * wide, 0), mask=is_mine)


@triton.jit
def fetch_columns(
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
def fetch_layer(
    program, wq_next, wo, wg, wd, has_next,
    LAYERS: tl.constexpr, DIM: tl.constexpr, FFN: tl.constexpr, Q: tl.constexpr, N_QKV: tl.constexpr,
    SETS: tl.constexpr,
):  # fmt: skip
    fetch_columns(program, wo, LAYERS * DIM * Q, 0, DIM // 16, Q, 16, SETS, False)
    fetch_columns(program, wg, LAYERS * 2 * FFN * DIM, FFN, FFN // 16, DIM, 16, SETS, True)
    fetch_columns(program, wd, LAYERS * DIM * FFN, 0, DIM // 16, FFN, 32, SETS, False)
    if has_next:
        fetch_columns(program, wq_next, LAYERS * N_QKV * DIM, 0, N_QKV // 16, DIM, 16, SETS, False)
