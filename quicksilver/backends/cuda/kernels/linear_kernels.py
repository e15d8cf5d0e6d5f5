"""The kernels behind `project.py`: the linears of a layer for few rows, each with all that follows it.

A program multiplies a pair of column groups by all rows along its split of the depth. Where there are splits, rows are
finished in slices of a few, added up from what the splits put down, so that a row's numbers come about in the same way
whatever the number of rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quicksilver.backends.cuda.kernels.fp8 import step_of
from quicksilver.backends.cuda.kernels.launch import fetch_ahead, let_next, wait_for_input, wait_turn
from quicksilver.backends.cuda.kernels.row_kernels import SHRINK, narrow
from quicksilver.backends.cuda.kernels.weight_streaming import (
    add_parts,
    clear_parts,
    leave_part,
    low_part,
    low_rank,
    low_sum,
    multiply,
    norm_divisor,
    own_rows,
)

_SHRINK = tl.constexpr(SHRINK)


@triton.jit
def _angles(angles, position, i, D: tl.constexpr):
    """cos and sin, (half a head, rows)."""
    turn = angles + (position.to(tl.int64) * D)[None, :] + i[:, None]
    return tl.load(turn), tl.load(turn + D // 2)


@triton.jit
def _turn(
    left, right, head, m, i, cos, sin, slot, out, k_cache, v_cache, q_gain, k_gain, head_eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """One head of raw qkv, (half a head, rows) twice: norm, rotate, store, and keep keys and values."""
    HALF: tl.constexpr = D // 2
    is_value = head >= HEADS + KV_HEADS
    if not is_value:
        if NORM:
            gain = q_gain if head < HEADS else k_gain
            shrink = tl.rsqrt((tl.sum(left * left, 0) + tl.sum(right * right, 0)) / D + head_eps)[None, :]
            left = left * shrink * tl.load(gain + i).to(tl.float32)[:, None]
            right = right * shrink * tl.load(gain + HALF + i).to(tl.float32)[:, None]
        left, right = left * cos - right * sin, right * cos + left * sin
    at = m[None, :] * ((HEADS + 2 * KV_HEADS) * D) + head * D + i[:, None]
    tl.store(out + at, left.to(out.dtype.element_ty))
    tl.store(out + at + HALF, right.to(out.dtype.element_ty))
    if head >= HEADS:
        is_kept = (slot >= 0)[None, :] & (i >= 0)[:, None]
        store = v_cache if is_value else k_cache
        to = (slot * (KV_HEADS * D) + ((head - HEADS) % KV_HEADS) * D)[None, :] + i[:, None]
        tl.store(store + to, left.to(k_cache.dtype.element_ty), mask=is_kept)
        tl.store(store + to + HALF, right.to(k_cache.dtype.element_ty), mask=is_kept)


@triton.jit
def _add_low(
    a, b_, first, second, m, scale, low, b, ready,
    SCALE: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """The low-rank term onto the first split's sums, where the accumulators lie as its product does. A zero term leaves
    every sum bit for bit."""
    t = low_sum(low, ready, m, RANK)
    c, d = low_rank(t, b, first, RANK), low_rank(t, b, second, RANK)
    if SCALE:
        c, d = c / tl.load(scale + first)[:, None], d / tl.load(scale + second)[:, None]
    return a + c, b_ + d


@triton.jit
def _unshrunk(scale, FP8: tl.constexpr):
    """An output's scale, and what its input was shrunk by."""
    return (tl.load(scale) / (1.0 if FP8 else _SHRINK))[:, None]


@triton.jit
def _finish_pair(
    a, b_, first, second, m, bias, scale, squares, eps, K,
    ROWS: tl.constexpr, TILES: tl.constexpr, BIAS: tl.constexpr, SCALE: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Scale, norm's divisor and bias."""
    if SCALE:
        a, b_ = a * _unshrunk(scale + first, FP8), b_ * _unshrunk(scale + second, FP8)
    if TILES > 0:
        shrink = norm_divisor(squares, m, K, eps, TILES, ROWS)[None, :]
        a, b_ = a * shrink, b_ * shrink
    if BIAS:
        a += tl.load(bias + first).to(tl.float32)[:, None]
        b_ += tl.load(bias + second).to(tl.float32)[:, None]
    return a, b_


@triton.jit
def _finish_qkv(
    left, right, head, m, first, second, cos, sin, slot, out, squares, bias, scale, k_cache, v_cache,
    q_gain, k_gain, eps, head_eps, K,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, TILES: tl.constexpr, BIAS: tl.constexpr, SCALE: tl.constexpr,
    FP8: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    left, right = _finish_pair(
        left, right, first, second, m, bias, scale, squares, eps, K, ROWS, TILES, BIAS, SCALE, FP8
    )
    # Rounded before it is normed and turned, as a linear layer's output is.
    left = left.to(out.dtype.element_ty).to(tl.float32)
    right = right.to(out.dtype.element_ty).to(tl.float32)
    _turn(
        left, right, head, m, tl.arange(0, BLOCK_N), cos, sin, slot, out, k_cache, v_cache, q_gain, k_gain, head_eps,
        HEADS, KV_HEADS, 2 * BLOCK_N, NORM,
    )  # fmt: skip


@triton.jit
def qkv_kernel(
    x, steps, w, out, sums, arrived, squares, bias, scale, low, b, a, gate, ready, low_depth, tiles,
    k_cache, v_cache, angles, positions, slots, q_gain, k_gain, eps, head_eps, K, depth,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr, SLICE: tl.constexpr,
    FINISHERS: tl.constexpr, EVEN: tl.constexpr, TILES: tl.constexpr, BIAS: tl.constexpr, SCALE: tl.constexpr,
    PARTS: tl.constexpr, RANK: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, NORM: tl.constexpr,
    LINES: tl.constexpr, FETCHES: tl.constexpr, FP8: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0) - PARTS * (RANK // 16)
    if RANK > 0:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
        if item < 0:
            wait_turn(OVERLAPS)
            low_part(
                item + PARTS * (RANK // 16), x, steps, a, low, gate, ready, K, low_depth,
                ROWS, GROUP, PARTS, RANK, FP8,
            )  # fmt: skip
            return
    head, split = item % tiles, item // tiles
    m, i = tl.arange(0, ROWS), tl.arange(0, BLOCK_N)
    first = (head * (2 * BLOCK_N) + i).to(tl.int64)
    second = first + BLOCK_N
    begin = split * depth
    _fetch_own(w, b, first, second, split, K, begin, RANK, LINES, FETCHES, OVERLAPS)
    # Places are older than the launch before this one: asked for now where it is known which rows this program
    # finishes. The wait for a position itself costs nothing where launches overlap.
    KNOWN: tl.constexpr = SPLITS == 1 or ROWS == SLICE * FINISHERS
    if KNOWN:
        mine = own_rows(split, ROWS, SPLITS, SLICE, FINISHERS)
        position, slot = tl.load(positions + mine), tl.load(slots + mine).to(tl.int64)
        if OVERLAPS:
            cos, sin = _angles(angles, position, i, 2 * BLOCK_N)
    wait_for_input(OVERLAPS)
    end = tl.minimum(begin + depth, K)
    left, right = multiply(x, steps, w, first, second, K, begin, end, ROWS, BLOCK_N, BLOCK_K, EVEN, FP8, GROUP, GROUPS)
    let_next(OVERLAPS)
    if KNOWN and not OVERLAPS:
        cos, sin = _angles(angles, position, i, 2 * BLOCK_N)
    if RANK > 0:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
        if split == 0:
            left, right = _add_low(left, right, first, second, m, scale, low, b, ready, SCALE, RANK)
    if SPLITS == 1:
        _finish_qkv(
            left, right, head, m, first, second, cos, sin, slot, out, squares, bias, scale, k_cache, v_cache,
            q_gain, k_gain, eps, head_eps, K, ROWS, BLOCK_N, TILES, BIAS, SCALE, FP8, HEADS, KV_HEADS, NORM,
        )  # fmt: skip
    else:
        from_slice, to_slice = leave_part(
            sums, arrived, left, right, head, split, ROWS, BLOCK_N, SPLITS, SLICE, FINISHERS)  # fmt: skip
        for index in tl.range(from_slice, to_slice, num_stages=1):
            n = index * SLICE + tl.arange(0, SLICE)
            if not KNOWN:
                cos, sin = _angles(angles, tl.load(positions + n), i, 2 * BLOCK_N)
                slot = tl.load(slots + n).to(tl.int64)
            half, other = add_parts(sums, n, head, ROWS, BLOCK_N, SPLITS)
            _finish_qkv(
                half, other, head, n, first, second, cos, sin, slot, out, squares, bias, scale, k_cache, v_cache,
                q_gain, k_gain, eps, head_eps, K, ROWS, BLOCK_N, TILES, BIAS, SCALE, FP8, HEADS, KV_HEADS, NORM,
            )  # fmt: skip
        clear_parts(arrived, head, from_slice, to_slice, SPLITS, FINISHERS)


@triton.jit
def _fetch_own(
    w, b, first, second, split, K, begin,
    RANK: tl.constexpr, LINES: tl.constexpr, FETCHES: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Ask for what this program reads first, and for its rows of the adapter, which it reads last."""
    EACH: tl.constexpr = 4 if w.dtype.element_ty == tl.int16 else 1  # weights
    fetch_ahead(w, first, K // EACH, begin // EACH, LINES, OVERLAPS)
    fetch_ahead(w, second, K // EACH, begin // EACH, LINES, OVERLAPS)
    if RANK > 0:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
        if split == 0:
            fetch_ahead(b, first, RANK, 0, RANK // 64 if RANK > 64 else 1, FETCHES)
            fetch_ahead(b, second, RANK, 0, RANK // 64 if RANK > 64 else 1, FETCHES)


@triton.jit
def _finish_swiglu(
    gate, up, tile, n, m, first, second, out, out_steps, squares, scale, eps, K, N,
    ROWS: tl.constexpr, TILES: tl.constexpr, SCALE: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    gate, up = _finish_pair(gate, up, first, second, m, out, scale, squares, eps, K, ROWS, TILES, False, SCALE, FP8)
    y = gate / (1.0 + tl.exp(-gate)) * up
    if FP8:
        step = step_of(tl.max(tl.abs(y), 0))
        tl.store(out_steps + tile * ROWS + m, step)
        y = y / step[None, :]
    tl.store(out + m[None, :] * N + n[:, None], narrow(y, out.dtype.element_ty, _SHRINK if SCALE and not FP8 else 1.0))


@triton.jit
def swiglu_kernel(
    x, steps, w, out, out_steps, sums, arrived, squares, scale, low, b, a, gate_of, ready, low_depth, tiles,
    eps, K, N, depth,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr, SLICE: tl.constexpr,
    FINISHERS: tl.constexpr, EVEN: tl.constexpr, TILES: tl.constexpr, SCALE: tl.constexpr, PARTS: tl.constexpr,
    RANK: tl.constexpr, LINES: tl.constexpr, FETCHES: tl.constexpr, FP8: tl.constexpr, GROUP: tl.constexpr,
    GROUPS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up; w holds N gate rows, then N up rows."""
    item = tl.program_id(0) - PARTS * (RANK // 16)
    if RANK > 0:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
        if item < 0:
            wait_turn(OVERLAPS)
            low_part(
                item + PARTS * (RANK // 16), x, steps, a, low, gate_of, ready, K, low_depth,
                ROWS, GROUP, PARTS, RANK, FP8,
            )  # fmt: skip
            return
    tile, split = item % tiles, item // tiles
    m, n = tl.arange(0, ROWS), tile * BLOCK_N + tl.arange(0, BLOCK_N)
    first = n.to(tl.int64)
    second = first + N
    begin = split * depth
    _fetch_own(w, b, first, second, split, K, begin, RANK, LINES, FETCHES, OVERLAPS)
    wait_for_input(OVERLAPS)
    end = tl.minimum(begin + depth, K)
    gate, up = multiply(x, steps, w, first, second, K, begin, end, ROWS, BLOCK_N, BLOCK_K, EVEN, FP8, GROUP, GROUPS)
    let_next(OVERLAPS)
    if RANK > 0:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
        if split == 0:
            gate, up = _add_low(gate, up, first, second, m, scale, low, b, ready, SCALE, RANK)
    if SPLITS == 1:
        _finish_swiglu(
            gate, up, tile, n, m, first, second, out, out_steps, squares, scale, eps, K, N, ROWS, TILES, SCALE, FP8
        )  # fmt: skip
    else:
        from_slice, to_slice = leave_part(sums, arrived, gate, up, tile, split, ROWS, BLOCK_N, SPLITS, SLICE, FINISHERS)
        for index in tl.range(from_slice, to_slice, num_stages=1):
            r = index * SLICE + tl.arange(0, SLICE)
            half, other = add_parts(sums, r, tile, ROWS, BLOCK_N, SPLITS)
            _finish_swiglu(
                half, other, tile, n, r, first, second, out, out_steps, squares, scale, eps, K, N,
                ROWS, TILES, SCALE, FP8,
            )  # fmt: skip
        clear_parts(arrived, tile, from_slice, to_slice, SPLITS, FINISHERS)


@triton.jit
def add_kernel(
    x, steps, w, stream, y, y_steps, sums, arrived, squares, gain, scale, low, b, a_low, gate, ready, low_depth,
    tiles, K, N, depth,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr, SLICE: tl.constexpr,
    FINISHERS: tl.constexpr, EVEN: tl.constexpr, SCALE: tl.constexpr, PARTS: tl.constexpr, RANK: tl.constexpr,
    LINES: tl.constexpr, FETCHES: tl.constexpr, FP8: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """stream += W x, in place; and the sum times the next norm's gain, and its squares."""
    item = tl.program_id(0) - PARTS * (RANK // 16)
    if RANK > 0:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
        if item < 0:
            wait_turn(OVERLAPS)
            low_part(
                item + PARTS * (RANK // 16), x, steps, a_low, low, gate, ready, K, low_depth,
                ROWS, GROUP, PARTS, RANK, FP8,
            )  # fmt: skip
            return
    tile, split = item % tiles, item // tiles
    m, i = tl.arange(0, ROWS), tl.arange(0, BLOCK_N)
    first = (tile * (2 * BLOCK_N) + i).to(tl.int64)
    second = first + BLOCK_N
    begin = split * depth
    _fetch_own(w, b, first, second, split, K, begin, RANK, LINES, FETCHES, OVERLAPS)
    wait_for_input(OVERLAPS)
    end = tl.minimum(begin + depth, K)
    a, c = multiply(x, steps, w, first, second, K, begin, end, ROWS, BLOCK_N, BLOCK_K, EVEN, FP8, GROUP, GROUPS)
    let_next(OVERLAPS)
    if RANK > 0:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
        if split == 0:
            a, c = _add_low(a, c, first, second, m, scale, low, b, ready, SCALE, RANK)
    if SPLITS == 1:
        _finish_add(
            a, c, tile, m, first, second, stream, y, y_steps, squares, gain, scale, K, N, ROWS, BLOCK_N, SCALE, FP8
        )  # fmt: skip
    else:
        from_slice, to_slice = leave_part(sums, arrived, a, c, tile, split, ROWS, BLOCK_N, SPLITS, SLICE, FINISHERS)
        for index in tl.range(from_slice, to_slice, num_stages=1):
            n = index * SLICE + tl.arange(0, SLICE)
            half, other = add_parts(sums, n, tile, ROWS, BLOCK_N, SPLITS)
            _finish_add(
                half, other, tile, n, first, second, stream, y, y_steps, squares, gain, scale, K, N,
                ROWS, BLOCK_N, SCALE, FP8,
            )  # fmt: skip
        clear_parts(arrived, tile, from_slice, to_slice, SPLITS, FINISHERS)


@triton.jit
def _finish_add(
    a, c, tile, m, first, second, stream, y, y_steps, squares, gain, scale, K, N,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, SCALE: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    a, c = _finish_pair(a, c, first, second, m, stream, scale, squares, 0.0, K, ROWS, 0, False, SCALE, FP8)
    at = m[None, :] * N + (tile * (2 * BLOCK_N) + tl.arange(0, BLOCK_N))[:, None]
    a = _add_half(a, stream, at)
    c = _add_half(c, stream, at + BLOCK_N)
    tl.store(squares + tile * ROWS + m, tl.sum(a * a, 0) + tl.sum(c * c, 0))
    a = a * tl.load(gain + first).to(tl.float32)[:, None]
    c = c * tl.load(gain + second).to(tl.float32)[:, None]
    if FP8:
        step = step_of(tl.maximum(tl.max(tl.abs(a), 0), tl.max(tl.abs(c), 0)))
        tl.store(y_steps + tile * ROWS + m, step)
        a, c = a / step[None, :], c / step[None, :]
    tl.store(y + at, narrow(a, y.dtype.element_ty, _SHRINK if SCALE and not FP8 else 1.0))
    tl.store(y + at + BLOCK_N, narrow(c, y.dtype.element_ty, _SHRINK if SCALE and not FP8 else 1.0))


@triton.jit
def _add_half(a, stream, at):
    """Rounded before it is added, and again after, as the plain network does; returns the sum."""
    dtype = stream.dtype.element_ty
    sum_ = (a.to(dtype).to(tl.float32) + tl.load(stream + at).to(tl.float32)).to(dtype)
    tl.store(stream + at, sum_)
    return sum_.to(tl.float32)
