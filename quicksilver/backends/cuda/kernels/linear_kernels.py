"""Kernels of `linears.py`: the linears of a layer for small batches, each with its epilogue.

A program multiplies a pair of column blocks by all rows over its split of K. With split K, the partial sums of a slice
of rows are added in a fixed order, so the reduction order of a row does not depend on the number of rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quicksilver.backends.cuda.kernels.fp8 import fp8_step
from quicksilver.backends.cuda.kernels.launch import pdl_launch, pdl_wait, pdl_wait_and_launch, prefetch_rows
from quicksilver.backends.cuda.kernels.rope_kernel import head_halves
from quicksilver.backends.cuda.kernels.row_kernels import INPUT_SCALE, to_input_format
from quicksilver.backends.cuda.kernels.weight_streaming import (
    adapter_b,
    compute_ax,
    inv_rms_of,
    matmul,
    reset_counter,
    rows_to_reduce,
    store_partial,
    sum_partials,
    wait_for_ax,
)

_INPUT_SCALE = tl.constexpr(INPUT_SCALE)
# Halvings of a column of `_sum_columns`: blocks have at most 128 rows.
_LEVELS = tl.constexpr(7)


@triton.jit
def _angles(angles, position, i, D: tl.constexpr):
    """cos and sin, (head_dim / 2, rows)."""
    epilogue = angles + (position.to(tl.int64) * D)[None, :] + i[:, None]
    return tl.load(epilogue), tl.load(epilogue + D // 2)


@triton.jit
def _sum_columns(x, ROWS: tl.constexpr, FIXED: tl.constexpr):
    """Sums over axis 0 of x (ROWS, columns). With FIXED the order of additions does not follow from the layout, which
    depends on the number of warps and so on the size of the batch."""
    if not FIXED:
        return tl.sum(x, 0)
    COLUMNS: tl.constexpr = x.shape[1]
    for level in tl.static_range(_LEVELS):
        if ROWS >> (level + 1) > 0:
            halves = tl.reshape(x, (2, ROWS >> (level + 1), COLUMNS))
            first, second = tl.split(tl.permute(halves, (1, 2, 0)))
            x = first + second
    return tl.reshape(x, (COLUMNS,))


@triton.jit
def _finish_head(
    left, right, head, m, i, cos, sin, slot, out, k_cache, v_cache, q_gain, k_gain, head_eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, NORM: tl.constexpr, ROTARY: tl.constexpr,
    FIXED: tl.constexpr,
):  # fmt: skip
    """Both halves of one head, (head_dim / 2, rows) each: norm, RoPE, store, and write keys and values to the cache."""
    left_i, right_i = head_halves(i, D, ROTARY)
    is_value = head >= HEADS + KV_HEADS
    if not is_value:
        if NORM:
            gain = q_gain if head < HEADS else k_gain
            total = _sum_columns(left * left, D // 2, FIXED) + _sum_columns(right * right, D // 2, FIXED)
            inv_rms = tl.rsqrt(total / D + head_eps)[None, :]
            left = left * inv_rms * tl.load(gain + left_i).to(tl.float32)[:, None]
            right = right * inv_rms * tl.load(gain + right_i).to(tl.float32)[:, None]
        left, right = left * cos - right * sin, right * cos + left * sin
    at = m[None, :] * ((HEADS + 2 * KV_HEADS) * D) + head * D
    tl.store(out + at + left_i[:, None], left.to(out.dtype.element_ty))
    tl.store(out + at + right_i[:, None], right.to(out.dtype.element_ty))
    if head >= HEADS:
        is_cached = (slot >= 0)[None, :] & (i >= 0)[:, None]
        cache = v_cache if is_value else k_cache
        to = (slot * (KV_HEADS * D) + ((head - HEADS) % KV_HEADS) * D)[None, :]
        tl.store(cache + to + left_i[:, None], left.to(k_cache.dtype.element_ty), mask=is_cached)
        tl.store(cache + to + right_i[:, None], right.to(k_cache.dtype.element_ty), mask=is_cached)


@triton.jit
def _add_adapter(
    a, b_, first, second, m, scale, ax, b, ready,
    SCALE: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """Add the low-rank term to the sums of the first split, whose accumulators have the same layout. A zero term does
    not change any bit."""
    t = wait_for_ax(ax, ready, m, RANK)
    c, d = adapter_b(t, b, first, RANK), adapter_b(t, b, second, RANK)
    if SCALE:
        c, d = c / tl.load(scale + first)[:, None], d / tl.load(scale + second)[:, None]
    return a + c, b_ + d


@triton.jit
def _add_terms(a, b_, first, second, m, scale, terms, width, SCALE: tl.constexpr):
    """Add the terms of the row adapters, (rows, width) fp32, as `_add_adapter` adds its own."""
    at = terms + m[None, :] * width
    c, d = tl.load(at + first[:, None]), tl.load(at + second[:, None])
    if SCALE:
        c, d = c / tl.load(scale + first)[:, None], d / tl.load(scale + second)[:, None]
    return a + c, b_ + d


@triton.jit
def _add_low_rank(
    a, b_, first, second, m, scale, ax, b, ready, terms, width, split,
    SCALE: tl.constexpr, RANK: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    """Add the terms of all adapters to the sums of the first split."""
    if RANK > 0:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
        if split == 0:
            a, b_ = _add_adapter(a, b_, first, second, m, scale, ax, b, ready, SCALE, RANK)
    if TERMS:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
        if split == 0:
            a, b_ = _add_terms(a, b_, first, second, m, scale, terms, width, SCALE)
    return a, b_


@triton.jit
def _output_scale(scale, FP8: tl.constexpr):
    """An output's scale divided by the scale of its input."""
    return (tl.load(scale) / (1.0 if FP8 else _INPUT_SCALE))[:, None]


@triton.jit
def _finish_pair(
    a, b_, first, second, m, bias, scale, squares, eps, K,
    ROWS: tl.constexpr, TILES: tl.constexpr, BIAS: tl.constexpr, SCALE: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Apply scale, norm and bias."""
    if SCALE:
        a, b_ = a * _output_scale(scale + first, FP8), b_ * _output_scale(scale + second, FP8)
    if TILES > 0:
        inv_rms = inv_rms_of(squares, m, K, eps, TILES, ROWS)[None, :]
        a, b_ = a * inv_rms, b_ * inv_rms
    if BIAS:
        a += tl.load(bias + first).to(tl.float32)[:, None]
        b_ += tl.load(bias + second).to(tl.float32)[:, None]
    return a, b_


@triton.jit
def _finish_qkv(
    left, right, head, m, first, second, cos, sin, slot, out, squares, bias, scale, k_cache, v_cache,
    q_gain, k_gain, eps, head_eps, K,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, TILES: tl.constexpr, BIAS: tl.constexpr, SCALE: tl.constexpr,
    FP8: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, NORM: tl.constexpr, ROTARY: tl.constexpr,
    FIXED: tl.constexpr,
):  # fmt: skip
    left, right = _finish_pair(
        left, right, first, second, m, bias, scale, squares, eps, K, ROWS, TILES, BIAS, SCALE, FP8
    )
    # Rounded before norm and RoPE, as the output of a linear layer is.
    left = left.to(out.dtype.element_ty).to(tl.float32)
    right = right.to(out.dtype.element_ty).to(tl.float32)
    _finish_head(
        left, right, head, m, tl.arange(0, BLOCK_N), cos, sin, slot, out, k_cache, v_cache, q_gain, k_gain, head_eps,
        HEADS, KV_HEADS, 2 * BLOCK_N, NORM, ROTARY, FIXED,
    )  # fmt: skip


@triton.jit
def qkv_kernel(
    x, steps, w, out, sums, arrived, squares, bias, scale, ax, b, a, gate, ready, ax_depth, terms, tiles,
    k_cache, v_cache, angles, positions, slots, q_gain, k_gain, eps, head_eps, K, depth,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr, SLICE: tl.constexpr,
    FINISHERS: tl.constexpr, EVEN: tl.constexpr, TILES: tl.constexpr, BIAS: tl.constexpr, SCALE: tl.constexpr,
    AX_SPLITS: tl.constexpr, RANK: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, NORM: tl.constexpr,
    LINES: tl.constexpr, PREFETCHES: tl.constexpr, FP8: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    ROTARY: tl.constexpr, TERMS: tl.constexpr, FIXED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0) - AX_SPLITS * (RANK // 16)
    if RANK > 0:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
        if item < 0:
            pdl_wait_and_launch(PDL)
            compute_ax(
                item + AX_SPLITS * (RANK // 16), x, steps, a, ax, gate, ready, K, ax_depth,
                ROWS, GROUP, AX_SPLITS, RANK, FP8,
            )  # fmt: skip
            return
    head, split = item % tiles, item // tiles
    m, i = tl.arange(0, ROWS), tl.arange(0, BLOCK_N)
    left_i, right_i = head_halves(i, 2 * BLOCK_N, ROTARY)
    first, second = (head * (2 * BLOCK_N) + left_i).to(tl.int64), (head * (2 * BLOCK_N) + right_i).to(tl.int64)
    begin, end = split * depth, tl.minimum(split * depth + depth, K)
    _prefetch_own(w, b, first, second, split, K, begin, RANK, LINES, PREFETCHES, PDL)
    # Positions and slots were written before the previous kernel: loaded before the wait if the own rows are known.
    ROWS_KNOWN: tl.constexpr = SPLITS == 1 or ROWS == SLICE * FINISHERS
    if ROWS_KNOWN:
        own_rows = rows_to_reduce(split, ROWS, SPLITS, SLICE, FINISHERS)
        position, slot = tl.load(positions + own_rows), tl.load(slots + own_rows).to(tl.int64)
        if PDL:
            cos, sin = _angles(angles, position, i, 2 * BLOCK_N)
    pdl_wait(PDL)
    left, right = matmul(x, steps, w, first, second, K, begin, end, ROWS, BLOCK_N, BLOCK_K, EVEN, FP8, GROUP, GROUPS)
    pdl_launch(PDL)
    if ROWS_KNOWN and not PDL:
        cos, sin = _angles(angles, position, i, 2 * BLOCK_N)
    left, right = _add_low_rank(
        left, right, first, second, m, scale, ax, b, ready, terms, tiles * (2 * BLOCK_N), split, SCALE, RANK, TERMS
    )  # fmt: skip
    if SPLITS == 1:
        _finish_qkv(
            left, right, head, m, first, second, cos, sin, slot, out, squares, bias, scale, k_cache, v_cache, q_gain,
            k_gain, eps, head_eps, K, ROWS, BLOCK_N, TILES, BIAS, SCALE, FP8, HEADS, KV_HEADS, NORM, ROTARY, FIXED,
        )  # fmt: skip
    else:
        from_slice, to_slice = store_partial(
            sums, arrived, left, right, head, split, ROWS, BLOCK_N, SPLITS, SLICE, FINISHERS
        )
        for index in tl.range(from_slice, to_slice, num_stages=1):
            n = index * SLICE + tl.arange(0, SLICE)
            if not ROWS_KNOWN:
                cos, sin = _angles(angles, tl.load(positions + n), i, 2 * BLOCK_N)
                slot = tl.load(slots + n).to(tl.int64)
            half, other = sum_partials(sums, n, head, ROWS, BLOCK_N, SPLITS)
            _finish_qkv(
                half, other, head, n, first, second, cos, sin, slot, out, squares, bias, scale, k_cache, v_cache,
                q_gain, k_gain, eps, head_eps, K,
                ROWS, BLOCK_N, TILES, BIAS, SCALE, FP8, HEADS, KV_HEADS, NORM, ROTARY, FIXED,
            )  # fmt: skip
        reset_counter(arrived, head, from_slice, to_slice, SPLITS, FINISHERS)


@triton.jit
def _prefetch_own(
    w, b, first, second, split, K, begin,
    RANK: tl.constexpr, LINES: tl.constexpr, PREFETCHES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Prefetch the first weights of this program, and its rows of the adapter, which it reads last."""
    PACKED: tl.constexpr = 4 if w.dtype.element_ty == tl.int16 else 1  # weights per element
    prefetch_rows(w, first, K // PACKED, begin // PACKED, LINES, PDL)
    prefetch_rows(w, second, K // PACKED, begin // PACKED, LINES, PDL)
    if RANK > 0:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
        if split == 0:
            prefetch_rows(b, first, RANK, 0, RANK // 64 if RANK > 64 else 1, PREFETCHES)
            prefetch_rows(b, second, RANK, 0, RANK // 64 if RANK > 64 else 1, PREFETCHES)


@triton.jit
def _finish_swiglu(
    gate, up, tile, n, m, first, second, out, out_steps, squares, scale, eps, K, N,
    ROWS: tl.constexpr, TILES: tl.constexpr, SCALE: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    gate, up = _finish_pair(gate, up, first, second, m, out, scale, squares, eps, K, ROWS, TILES, False, SCALE, FP8)
    y = gate / (1.0 + tl.exp(-gate)) * up
    if FP8:
        step = fp8_step(tl.max(tl.abs(y), 0))
        tl.store(out_steps + tile * ROWS + m, step)
        y = y / step[None, :]
    tl.store(
        out + m[None, :] * N + n[:, None],
        to_input_format(y, out.dtype.element_ty, _INPUT_SCALE if SCALE and not FP8 else 1.0),
    )


@triton.jit
def swiglu_kernel(
    x, steps, w, out, out_steps, sums, arrived, squares, scale, ax, b, a, gate_of, ready, ax_depth, terms,
    tiles, eps, K, N, depth,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr, SLICE: tl.constexpr,
    FINISHERS: tl.constexpr, EVEN: tl.constexpr, TILES: tl.constexpr, SCALE: tl.constexpr, AX_SPLITS: tl.constexpr,
    RANK: tl.constexpr, LINES: tl.constexpr, PREFETCHES: tl.constexpr, FP8: tl.constexpr, GROUP: tl.constexpr,
    GROUPS: tl.constexpr, TERMS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up; w holds N gate rows, then N up rows."""
    item = tl.program_id(0) - AX_SPLITS * (RANK // 16)
    if RANK > 0:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
        if item < 0:
            pdl_wait_and_launch(PDL)
            compute_ax(
                item + AX_SPLITS * (RANK // 16), x, steps, a, ax, gate_of, ready, K, ax_depth,
                ROWS, GROUP, AX_SPLITS, RANK, FP8,
            )  # fmt: skip
            return
    tile, split = item % tiles, item // tiles
    m, n = tl.arange(0, ROWS), tile * BLOCK_N + tl.arange(0, BLOCK_N)
    first = n.to(tl.int64)
    second = first + N
    begin = split * depth
    _prefetch_own(w, b, first, second, split, K, begin, RANK, LINES, PREFETCHES, PDL)
    pdl_wait(PDL)
    end = tl.minimum(begin + depth, K)
    gate, up = matmul(x, steps, w, first, second, K, begin, end, ROWS, BLOCK_N, BLOCK_K, EVEN, FP8, GROUP, GROUPS)
    pdl_launch(PDL)
    gate, up = _add_low_rank(
        gate, up, first, second, m, scale, ax, b, ready, terms, 2 * N, split, SCALE, RANK, TERMS
    )  # fmt: skip
    if SPLITS == 1:
        _finish_swiglu(
            gate, up, tile, n, m, first, second, out, out_steps, squares, scale, eps, K, N, ROWS, TILES, SCALE, FP8
        )  # fmt: skip
    else:
        from_slice, to_slice = store_partial(
            sums, arrived, gate, up, tile, split, ROWS, BLOCK_N, SPLITS, SLICE, FINISHERS
        )
        for index in tl.range(from_slice, to_slice, num_stages=1):
            r = index * SLICE + tl.arange(0, SLICE)
            half, other = sum_partials(sums, r, tile, ROWS, BLOCK_N, SPLITS)
            _finish_swiglu(
                half, other, tile, n, r, first, second, out, out_steps, squares, scale, eps, K, N,
                ROWS, TILES, SCALE, FP8,
            )  # fmt: skip
        reset_counter(arrived, tile, from_slice, to_slice, SPLITS, FINISHERS)


@triton.jit
def add_kernel(
    x, steps, w, stream, y, y_steps, sums, arrived, squares, gain, scale, ax, b, a_low, gate, ready, ax_depth,
    terms, tiles, K, N, depth,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr, SLICE: tl.constexpr,
    FINISHERS: tl.constexpr, EVEN: tl.constexpr, SCALE: tl.constexpr, AX_SPLITS: tl.constexpr, RANK: tl.constexpr,
    LINES: tl.constexpr, PREFETCHES: tl.constexpr, FP8: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    TERMS: tl.constexpr, FIXED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """stream += W x in place; also store the sum times the next norm's gain, and its sums of squares."""
    item = tl.program_id(0) - AX_SPLITS * (RANK // 16)
    if RANK > 0:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
        if item < 0:
            pdl_wait_and_launch(PDL)
            compute_ax(
                item + AX_SPLITS * (RANK // 16), x, steps, a_low, ax, gate, ready, K, ax_depth,
                ROWS, GROUP, AX_SPLITS, RANK, FP8,
            )  # fmt: skip
            return
    tile, split = item % tiles, item // tiles
    m, i = tl.arange(0, ROWS), tl.arange(0, BLOCK_N)
    first = (tile * (2 * BLOCK_N) + i).to(tl.int64)
    second = first + BLOCK_N
    begin = split * depth
    _prefetch_own(w, b, first, second, split, K, begin, RANK, LINES, PREFETCHES, PDL)
    pdl_wait(PDL)
    end = tl.minimum(begin + depth, K)
    a, c = matmul(x, steps, w, first, second, K, begin, end, ROWS, BLOCK_N, BLOCK_K, EVEN, FP8, GROUP, GROUPS)
    pdl_launch(PDL)
    a, c = _add_low_rank(
        a, c, first, second, m, scale, ax, b, ready, terms, N, split, SCALE, RANK, TERMS
    )  # fmt: skip
    if SPLITS == 1:
        _finish_add(
            a, c, tile, m, first, second, stream, y, y_steps, squares, gain, scale, K, N,
            ROWS, BLOCK_N, SCALE, FP8, FIXED,
        )  # fmt: skip
    else:
        from_slice, to_slice = store_partial(sums, arrived, a, c, tile, split, ROWS, BLOCK_N, SPLITS, SLICE, FINISHERS)
        for index in tl.range(from_slice, to_slice, num_stages=1):
            n = index * SLICE + tl.arange(0, SLICE)
            half, other = sum_partials(sums, n, tile, ROWS, BLOCK_N, SPLITS)
            _finish_add(
                half, other, tile, n, first, second, stream, y, y_steps, squares, gain, scale, K, N,
                ROWS, BLOCK_N, SCALE, FP8, FIXED,
            )  # fmt: skip
        reset_counter(arrived, tile, from_slice, to_slice, SPLITS, FINISHERS)


@triton.jit
def _finish_add(
    a, c, tile, m, first, second, stream, y, y_steps, squares, gain, scale, K, N,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, SCALE: tl.constexpr, FP8: tl.constexpr, FIXED: tl.constexpr,
):  # fmt: skip
    a, c = _finish_pair(a, c, first, second, m, stream, scale, squares, 0.0, K, ROWS, 0, False, SCALE, FP8)
    at = m[None, :] * N + (tile * (2 * BLOCK_N) + tl.arange(0, BLOCK_N))[:, None]
    a = _add_half(a, stream, at)
    c = _add_half(c, stream, at + BLOCK_N)
    total = _sum_columns(a * a, BLOCK_N, FIXED) + _sum_columns(c * c, BLOCK_N, FIXED)
    tl.store(squares + tile * ROWS + m, total)
    a = a * tl.load(gain + first).to(tl.float32)[:, None]
    c = c * tl.load(gain + second).to(tl.float32)[:, None]
    if FP8:
        step = fp8_step(tl.maximum(tl.max(tl.abs(a), 0), tl.max(tl.abs(c), 0)))
        tl.store(y_steps + tile * ROWS + m, step)
        a, c = a / step[None, :], c / step[None, :]
    tl.store(y + at, to_input_format(a, y.dtype.element_ty, _INPUT_SCALE if SCALE and not FP8 else 1.0))
    tl.store(y + at + BLOCK_N, to_input_format(c, y.dtype.element_ty, _INPUT_SCALE if SCALE and not FP8 else 1.0))


@triton.jit
def _add_half(a, stream, at):
    """Add to the stream in place, rounded before and after the addition as in the eager network -> the sum."""
    dtype = stream.dtype.element_ty
    sum_ = (a.to(dtype).to(tl.float32) + tl.load(stream + at).to(tl.float32)).to(dtype)
    tl.store(stream + at, sum_)
    return sum_.to(tl.float32)
