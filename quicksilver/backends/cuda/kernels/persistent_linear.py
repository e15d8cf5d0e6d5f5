"""Linears of the persistent kernel. A work item is 16 columns of a matrix by a tile of rows; K is never split, so the
linears are batch-invariant.

Canvas rows use a second copy of the weights with the adapter merged in. A tile with both kinds of rows reads both
copies one after the other; if it is the only tile, two work items read one copy each and store their own rows. Inputs
other than weights are loaded before the matmul, to hide their latency.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quicksilver.backends.cuda.kernels.launch import prefetch_rows


@triton.jit
def _adapter_copies(gate, r, copy, CANVAS: tl.constexpr, COPIES: tl.constexpr):
    """-> which rows use the adapter, the first and last copy of the weights to read, and the rows that this item
    stores."""
    uses_adapter = tl.load(gate + r) if CANVAS else r * 0
    if COPIES == 2:
        first_copy, last_copy, is_own = copy, copy, uses_adapter == copy
    else:
        first_copy, last_copy, is_own = tl.min(uses_adapter, 0), tl.max(uses_adapter, 0), r >= 0
    return uses_adapter, first_copy, last_copy, is_own


@triton.jit
def _matmul_pair(
    x, w, first, second, r, uses_adapter, first_copy, last_copy, copy_stride,
    K: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Two (16 columns, T rows) products; rows with the adapter use the second copy of the weights."""
    k = tl.arange(0, BLOCK_K)
    a = tl.zeros((16, T), tl.float32)
    b = tl.zeros((16, T), tl.float32)
    for copy in range(first_copy, last_copy + 1):
        at_x = x + r[:, None] * K + k[None, :]
        at_a = w + copy * copy_stride + first[:, None] * K + k[None, :]
        at_b = w + copy * copy_stride + second[:, None] * K + k[None, :]
        c, d = tl.zeros((16, T), tl.float32), tl.zeros((16, T), tl.float32)
        for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
            x_tile = tl.trans(tl.load(at_x + start, cache_modifier=".cg"))
            c = tl.dot(tl.load(at_a + start), x_tile, c, input_precision="ieee")
            d = tl.dot(tl.load(at_b + start), x_tile, d, input_precision="ieee")
        a = tl.where((uses_adapter == copy)[None, :], c, a)
        b = tl.where((uses_adapter == copy)[None, :], d, b)
    return a, b


@triton.jit
def _matmul(
    x, w, first, r, uses_adapter, first_copy, last_copy, copy_stride,
    K: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    k = tl.arange(0, BLOCK_K)
    a = tl.zeros((16, T), tl.float32)
    for copy in range(first_copy, last_copy + 1):
        at_x = x + r[:, None] * K + k[None, :]
        at_w = w + copy * copy_stride + first[:, None] * K + k[None, :]
        c = tl.zeros((16, T), tl.float32)
        for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
            x_tile = tl.trans(tl.load(at_x + start, cache_modifier=".cg"))
            c = tl.dot(tl.load(at_w + start), x_tile, c, input_precision="ieee")
        a = tl.where((uses_adapter == copy)[None, :], c, a)
    return a


@triton.jit
def _squares(squares, r, ROWS: tl.constexpr, SQUARES: tl.constexpr, TILES: tl.constexpr):
    tile = tl.arange(0, TILES)
    at = squares + tile[:, None] * ROWS + r[None, :]
    return tl.load(at, mask=(tile < SQUARES)[:, None], other=0.0, cache_modifier=".cg")


@triton.jit
def _inv_rms(parts, DIM: tl.constexpr, eps):
    """1 / RMS. The sum is exact in fp64, so it does not depend on how threads share it, which varies with the tile's
    rows."""
    return tl.rsqrt(tl.sum(parts.to(tl.float64), 0).to(tl.float32) / DIM + eps)[None, :]


@triton.jit
def _qkv_tile(
    column, r, is_own, left, right, bias, qkv, k_cache, v_cache, angles, position, slot,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """16 columns of the left half of a head and their RoPE partners: rotate, store, and write KV to the cache."""
    HALF: tl.constexpr = D // 2
    head = column // (HALF // 16)
    i = (column % (HALF // 16)) * 16 + tl.arange(0, 16)
    dtype = qkv.dtype.element_ty
    if BIAS:
        left += tl.load(bias + head * D + i).to(tl.float32)[:, None]
        right += tl.load(bias + head * D + HALF + i).to(tl.float32)[:, None]
    left, right = left.to(dtype).to(tl.float32), right.to(dtype).to(tl.float32)
    if head < HEADS + KV_HEADS:
        angle_row = angles + (position.to(tl.int64) * D)[None, :] + i[:, None]
        cos, sin = tl.load(angle_row), tl.load(angle_row + HALF)
        left, right = left * cos - right * sin, right * cos + left * sin
    at = qkv + r[None, :] * ((HEADS + 2 * KV_HEADS) * D) + head * D + i[:, None]
    is_stored = is_own[None, :] & (i >= 0)[:, None]
    tl.store(at, left.to(dtype), mask=is_stored)
    tl.store(at + HALF, right.to(dtype), mask=is_stored)
    if head >= HEADS:
        is_cached = (slot >= 0)[None, :] & is_stored
        store = v_cache if head >= HEADS + KV_HEADS else k_cache
        to = store + (slot * (KV_HEADS * D) + ((head - HEADS) % KV_HEADS) * D)[None, :] + i[:, None]
        tl.store(to, left.to(dtype), mask=is_cached)
        tl.store(to + HALF, right.to(dtype), mask=is_cached)


@triton.jit
def qkv_phase(
    cta, y, w, copy_stride, gate, squares, eps, bias, qkv, keys, values, angles, positions, slots,
    ROWS: tl.constexpr, DIM: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr,
    TILES: tl.constexpr, KD: tl.constexpr, CANVAS: tl.constexpr, COPIES: tl.constexpr,
    T: tl.constexpr, CTAS: tl.constexpr, STAGES: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    m, n = tl.arange(0, 16), tl.arange(0, T)
    HALF: tl.constexpr = D // 2
    COLUMNS: tl.constexpr = (HEADS + 2 * KV_HEADS) * D // 32
    ITEMS_PER_COPY: tl.constexpr = COLUMNS * (ROWS // T)
    for item in range(cta, ITEMS_PER_COPY * COPIES, CTAS):
        column, r = item % COLUMNS, (item % ITEMS_PER_COPY) // COLUMNS * T + n
        uses_adapter, first_copy, last_copy, is_own = _adapter_copies(gate, r, item // ITEMS_PER_COPY, CANVAS, COPIES)
        parts = _squares(squares, r, ROWS, DIM // 16, TILES)
        first = ((column // (HALF // 16)) * D + (column % (HALF // 16)) * 16 + m).to(tl.int64)
        position, slot = tl.load(positions + r), tl.load(slots + r).to(tl.int64)
        a, b = _matmul_pair(
            y, w, first, first + HALF, r, uses_adapter, first_copy, last_copy, copy_stride, DIM, KD, STAGES, T
        )
        inv_rms = _inv_rms(parts, DIM, eps)
        _qkv_tile(
            column, r, is_own, a * inv_rms, b * inv_rms, bias, qkv, keys, values, angles, position, slot,
            HEADS, KV_HEADS, D, BIAS,
        )  # fmt: skip


@triton.jit
def gate_phase(
    cta, y, w, copy_stride, gate, squares, eps, ffn,
    ROWS: tl.constexpr, DIM: tl.constexpr, FFN: tl.constexpr, TILES: tl.constexpr, KD: tl.constexpr,
    CANVAS: tl.constexpr, COPIES: tl.constexpr, T: tl.constexpr, CTAS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up of the normed stream."""
    m, n = tl.arange(0, 16), tl.arange(0, T)
    COLUMNS: tl.constexpr = FFN // 16
    ITEMS_PER_COPY: tl.constexpr = COLUMNS * (ROWS // T)
    for item in range(cta, ITEMS_PER_COPY * COPIES, CTAS):
        column, r = item % COLUMNS, (item % ITEMS_PER_COPY) // COLUMNS * T + n
        uses_adapter, first_copy, last_copy, is_own = _adapter_copies(gate, r, item // ITEMS_PER_COPY, CANVAS, COPIES)
        parts = _squares(squares, r, ROWS, DIM // 16, TILES)
        i = column * 16 + m
        first = i.to(tl.int64)
        a, b = _matmul_pair(
            y, w, first, first + FFN, r, uses_adapter, first_copy, last_copy, copy_stride, DIM, KD, STAGES, T
        )
        inv_rms = _inv_rms(parts, DIM, eps)
        a, b = a * inv_rms, b * inv_rms
        out = (a / (1.0 + tl.exp(-a)) * b).to(ffn.dtype.element_ty)
        tl.store(ffn + r[None, :] * FFN + i[:, None], out, mask=is_own[None, :] & (i >= 0)[:, None])


@triton.jit
def add_phase(
    cta, source, w, copy_stride, gate, x, y, squares, gain,
    ROWS: tl.constexpr, DIM: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr,
    CANVAS: tl.constexpr, COPIES: tl.constexpr, T: tl.constexpr, CTAS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """stream += W source, and the input of the next norm."""
    m, n = tl.arange(0, 16), tl.arange(0, T)
    COLUMNS: tl.constexpr = DIM // 16
    ITEMS_PER_COPY: tl.constexpr = COLUMNS * (ROWS // T)
    dtype = x.dtype.element_ty
    for item in range(cta, ITEMS_PER_COPY * COPIES, CTAS):
        column, r = item % COLUMNS, (item % ITEMS_PER_COPY) // COLUMNS * T + n
        uses_adapter, first_copy, last_copy, is_own = _adapter_copies(gate, r, item // ITEMS_PER_COPY, CANVAS, COPIES)
        i = column * 16 + m
        at = r[None, :] * DIM + i[:, None]
        gains, old = tl.load(gain + i).to(tl.float32), tl.load(x + at, cache_modifier=".cg").to(tl.float32)
        a = _matmul(
            source, w, i.to(tl.int64), r, uses_adapter, first_copy, last_copy, copy_stride, K, BLOCK_K, STAGES, T
        )
        is_stored = is_own[None, :] & (i >= 0)[:, None]
        sum_ = (a.to(dtype).to(tl.float32) + old).to(dtype)
        tl.store(x + at, sum_, mask=is_stored)
        wide = sum_.to(tl.float32)
        tl.store(y + at, (wide * gains[:, None]).to(dtype), mask=is_stored)
        tl.store(squares + column * ROWS + r, tl.sum(wide * wide, 0), mask=is_own)


@triton.jit
def prefetch_columns(
    cta, w, copy_stride, second,
    COLUMNS: tl.constexpr, K: tl.constexpr, LINES: tl.constexpr, COPIES_READ: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """Prefetch the weights of a later phase, one tile of columns per CTA."""
    if cta < COLUMNS * COPIES_READ:
        base = w + (cta // COLUMNS) * copy_stride
        rows = ((cta % COLUMNS) * 16 + tl.arange(0, 16)).to(tl.int64)
        prefetch_rows(base, rows, K, 0, LINES, True)
        if PAIR:
            prefetch_rows(base, rows + second, K, 0, LINES, True)


@triton.jit
def prefetch_layer(
    cta, wq_next, wo, wg, wd, has_next,
    LAYERS: tl.constexpr, DIM: tl.constexpr, FFN: tl.constexpr, Q: tl.constexpr, N_QKV: tl.constexpr,
    COPIES_READ: tl.constexpr,
):  # fmt: skip
    prefetch_columns(cta, wo, LAYERS * DIM * Q, 0, DIM // 16, Q, 16, COPIES_READ, False)
    prefetch_columns(cta, wg, LAYERS * 2 * FFN * DIM, FFN, FFN // 16, DIM, 16, COPIES_READ, True)
    prefetch_columns(cta, wd, LAYERS * DIM * FFN, 0, DIM // 16, FFN, 32, COPIES_READ, False)
    if has_next:
        prefetch_columns(cta, wq_next, LAYERS * N_QKV * DIM, 0, N_QKV // 16, DIM, 16, COPIES_READ, False)
