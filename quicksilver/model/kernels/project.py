"""The four linears of a layer for up to 64 rows, one launch each with all that follows: head norms, rotation and cache
write behind qkv, SwiGLU behind gate and up, the residual behind the outputs.

A norm costs no launch: the linear that completes the residual stream also leaves `Scaled`, the stream times the next
norm's gain and its sums of squares; the linear behind the norm divides at its end. Rows must fill the bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from quicksilver.model.kernels.later import Later, fetch_later, later_args
from quicksilver.model.kernels.launch import fetch_ahead, let_next, overlap, wait_for_input, wait_turn
from quicksilver.model.kernels.rotate import HeadNorms, RowSlots
from quicksilver.model.kernels.stream import (
    Cut,
    Parts,
    add_parts,
    leave_part,
    low_part,
    low_rank,
    low_sum,
    multiply,
    norm_divisor,
    pick_columns,
    pick_cut,
)


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm's gain (dim,) and epsilon."""

    gain: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Weight:
    """A linear's weights: (out, in), in the model's dtype or fp8 with one fp32 scale an output; and its bias."""

    w: Tensor
    bias: Tensor | None = None
    scale: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LowRankTerm:
    """a (rank, in) and b (out, rank) on the rows whose gate is 1. The first programs of the linear's launch leave A x
    in `low` (parts, rows, rank) fp32 and count themselves in `ready`, one int32 that must be zero before the launch."""

    a: Tensor
    b: Tensor
    low: Tensor
    gate: Tensor
    ready: Tensor

    @property
    def num_programs(self) -> int:
        return self.low.shape[0] * (self.a.shape[0] // 16)


@dataclass(frozen=True, slots=True)
class Scaled:
    """A normed input without its divisor: x * gain, and the sums of squares of x, (tiles, rows) fp32."""

    y: Tensor
    squares: Tensor


@dataclass(frozen=True, slots=True)
class Beside:
    """What a linear has besides its input, weights and output: room for its splits, an adapter's term, and weights to
    ask for on behalf of later launches."""

    parts: Parts
    term: LowRankTerm | None = None
    later: Later | None = None


@dataclass(frozen=True, slots=True)
class Rotation:
    """What turns raw qkv into attention's inputs."""

    where: RowSlots
    angles: Tensor
    caches: tuple[Tensor, Tensor]
    norms: HeadNorms | None


@triton.jit
def _turn(
    left, right, head, m, i, out, k_cache, v_cache, angles, positions, slots, q_gain, k_gain, head_eps,
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
        turn = angles + (tl.load(positions + m).to(tl.int64) * D)[None, :] + i[:, None]
        cos, sin = tl.load(turn), tl.load(turn + HALF)
        left, right = left * cos - right * sin, right * cos + left * sin
    at = m[None, :] * ((HEADS + 2 * KV_HEADS) * D) + head * D + i[:, None]
    tl.store(out + at, left.to(out.dtype.element_ty))
    tl.store(out + at + HALF, right.to(out.dtype.element_ty))
    if head >= HEADS:
        slot = tl.load(slots + m).to(tl.int64)
        is_kept = (slot >= 0)[None, :] & (i >= 0)[:, None]
        store = v_cache if is_value else k_cache
        to = (slot * (KV_HEADS * D) + ((head - HEADS) % KV_HEADS) * D)[None, :] + i[:, None]
        tl.store(store + to, left.to(k_cache.dtype.element_ty), mask=is_kept)
        tl.store(store + to + HALF, right.to(k_cache.dtype.element_ty), mask=is_kept)


@triton.jit
def _add_low(
    a, b_, first, second, m, scale, low, b, ready,
    ROWS: tl.constexpr, SCALE: tl.constexpr, PARTS: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """The low-rank term onto the first split's sums, where the accumulators lie as its product does. A zero term leaves
    every sum bit for bit."""
    t = low_sum(low, ready, m, ROWS, PARTS, RANK)
    c, d = low_rank(t, b, first, RANK), low_rank(t, b, second, RANK)
    if SCALE:
        c, d = c / tl.load(scale + first)[:, None], d / tl.load(scale + second)[:, None]
    return a + c, b_ + d


@triton.jit
def _finish_pair(
    a, b_, first, second, m, bias, scale, squares, eps, K,
    ROWS: tl.constexpr, TILES: tl.constexpr, BIAS: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Scale, norm's divisor and bias."""
    if SCALE:
        a, b_ = a * tl.load(scale + first)[:, None], b_ * tl.load(scale + second)[:, None]
    if TILES > 0:
        shrink = norm_divisor(squares, m, K, eps, TILES, ROWS)[None, :]
        a, b_ = a * shrink, b_ * shrink
    if BIAS:
        a += tl.load(bias + first).to(tl.float32)[:, None]
        b_ += tl.load(bias + second).to(tl.float32)[:, None]
    return a, b_


@triton.jit
def _qkv_kernel(
    x, w, out, sums, arrived, squares, bias, scale, low, b, a, gate, ready, low_depth, tiles,
    k_cache, v_cache, angles, positions, slots, q_gain, k_gain, eps, head_eps, K, depth,
    first_at, first_size, second_at, second_size, share,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr, EVEN: tl.constexpr,
    TILES: tl.constexpr, BIAS: tl.constexpr, SCALE: tl.constexpr, PARTS: tl.constexpr, RANK: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, NORM: tl.constexpr, LINES: tl.constexpr, LATER: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0) - PARTS * (RANK // 16)
    if RANK > 0:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
        if item < 0:
            wait_turn(OVERLAPS)
            low_part(item + PARTS * (RANK // 16), x, a, low, gate, ready, K, low_depth, ROWS, 64, RANK)
            return
    head, split = item % tiles, item // tiles
    m, i = tl.arange(0, ROWS), tl.arange(0, BLOCK_N)
    first = (head * (2 * BLOCK_N) + i).to(tl.int64)
    second = first + BLOCK_N
    begin = split * depth
    fetch_ahead(w, first, K, begin, LINES, OVERLAPS)
    fetch_ahead(w, second, K, begin, LINES, OVERLAPS)
    wait_for_input(OVERLAPS)
    left, right = multiply(x, w, first, second, K, begin, tl.minimum(begin + depth, K), ROWS, BLOCK_N, BLOCK_K, EVEN)
    let_next(OVERLAPS)
    fetch_later(item, first_at, first_size, second_at, second_size, share, LATER)
    if RANK > 0:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
        if split == 0:
            left, right = _add_low(left, right, first, second, m, scale, low, b, ready, ROWS, SCALE, PARTS, RANK)
    is_last = split >= 0
    if SPLITS > 1:
        is_last = leave_part(sums, arrived, left, right, head, split, ROWS, BLOCK_N, SPLITS)
    if is_last:
        if SPLITS > 1:
            left, right = add_parts(sums, arrived, head, ROWS, BLOCK_N, SPLITS)
        left, right = _finish_pair(
            left, right, first, second, m, bias, scale, squares, eps, K, ROWS, TILES, BIAS, SCALE
        )
        # Rounded before it is normed and turned, as a linear layer's output is.
        left = left.to(out.dtype.element_ty).to(tl.float32)
        right = right.to(out.dtype.element_ty).to(tl.float32)
        _turn(
            left, right, head, m, i, out, k_cache, v_cache, angles, positions, slots, q_gain, k_gain, head_eps,
            HEADS, KV_HEADS, 2 * BLOCK_N, NORM,
        )  # fmt: skip


@triton.jit
def _swiglu_kernel(
    x, w, out, sums, arrived, squares, scale, low, b, a, gate_of, ready, low_depth, tiles, eps, K, N, depth,
    first_at, first_size, second_at, second_size, share,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr, EVEN: tl.constexpr,
    TILES: tl.constexpr, SCALE: tl.constexpr, PARTS: tl.constexpr, RANK: tl.constexpr, LINES: tl.constexpr,
    LATER: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up; w holds N gate rows, then N up rows."""
    item = tl.program_id(0) - PARTS * (RANK // 16)
    if RANK > 0:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
        if item < 0:
            wait_turn(OVERLAPS)
            low_part(item + PARTS * (RANK // 16), x, a, low, gate_of, ready, K, low_depth, ROWS, 64, RANK)
            return
    tile, split = item % tiles, item // tiles
    m, n = tl.arange(0, ROWS), tile * BLOCK_N + tl.arange(0, BLOCK_N)
    first = n.to(tl.int64)
    second = first + N
    begin = split * depth
    fetch_ahead(w, first, K, begin, LINES, OVERLAPS)
    fetch_ahead(w, second, K, begin, LINES, OVERLAPS)
    wait_for_input(OVERLAPS)
    gate, up = multiply(x, w, first, second, K, begin, tl.minimum(begin + depth, K), ROWS, BLOCK_N, BLOCK_K, EVEN)
    let_next(OVERLAPS)
    fetch_later(item, first_at, first_size, second_at, second_size, share, LATER)
    if RANK > 0:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
        if split == 0:
            gate, up = _add_low(gate, up, first, second, m, scale, low, b, ready, ROWS, SCALE, PARTS, RANK)
    is_last = split >= 0
    if SPLITS > 1:
        is_last = leave_part(sums, arrived, gate, up, tile, split, ROWS, BLOCK_N, SPLITS)
    if is_last:
        if SPLITS > 1:
            gate, up = add_parts(sums, arrived, tile, ROWS, BLOCK_N, SPLITS)
        gate, up = _finish_pair(gate, up, first, second, m, x, scale, squares, eps, K, ROWS, TILES, False, SCALE)
        y = gate / (1.0 + tl.exp(-gate)) * up
        tl.store(out + m[None, :] * N + n[:, None], y.to(out.dtype.element_ty))


@triton.jit
def _add_kernel(
    x, w, stream, y, sums, arrived, squares, gain, scale, low, b, a_low, gate, ready, low_depth, tiles, K, N, depth,
    first_at, first_size, second_at, second_size, share,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr, EVEN: tl.constexpr,
    SCALE: tl.constexpr, PARTS: tl.constexpr, RANK: tl.constexpr, LINES: tl.constexpr, LATER: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """stream += W x, in place; and the sum times the next norm's gain, and its squares."""
    item = tl.program_id(0) - PARTS * (RANK // 16)
    if RANK > 0:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
        if item < 0:
            wait_turn(OVERLAPS)
            low_part(item + PARTS * (RANK // 16), x, a_low, low, gate, ready, K, low_depth, ROWS, 64, RANK)
            return
    tile, split = item % tiles, item // tiles
    m, i = tl.arange(0, ROWS), tl.arange(0, BLOCK_N)
    first = (tile * (2 * BLOCK_N) + i).to(tl.int64)
    second = first + BLOCK_N
    begin = split * depth
    fetch_ahead(w, first, K, begin, LINES, OVERLAPS)
    fetch_ahead(w, second, K, begin, LINES, OVERLAPS)
    wait_for_input(OVERLAPS)
    a, c = multiply(x, w, first, second, K, begin, tl.minimum(begin + depth, K), ROWS, BLOCK_N, BLOCK_K, EVEN)
    let_next(OVERLAPS)
    fetch_later(item, first_at, first_size, second_at, second_size, share, LATER)
    if RANK > 0:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
        if split == 0:
            a, c = _add_low(a, c, first, second, m, scale, low, b, ready, ROWS, SCALE, PARTS, RANK)
    is_last = split >= 0
    if SPLITS > 1:
        is_last = leave_part(sums, arrived, a, c, tile, split, ROWS, BLOCK_N, SPLITS)
    if is_last:
        if SPLITS > 1:
            a, c = add_parts(sums, arrived, tile, ROWS, BLOCK_N, SPLITS)
        a, c = _finish_pair(a, c, first, second, m, x, scale, squares, 0.0, K, ROWS, 0, False, SCALE)
        at = m[None, :] * N + (tile * (2 * BLOCK_N) + i)[:, None]
        total = _add_half(a, stream, y, gain + first, at)
        total += _add_half(c, stream, y, gain + second, at + BLOCK_N)
        tl.store(squares + tile * ROWS + m, total)


@triton.jit
def _add_half(a, stream, y, gain, at):
    """Rounded before it is added, and again after, as the plain network does; returns the sums of squares."""
    dtype = stream.dtype.element_ty
    sum_ = (a.to(dtype).to(tl.float32) + tl.load(stream + at).to(tl.float32)).to(dtype)
    tl.store(stream + at, sum_)
    wide = sum_.to(tl.float32)
    tl.store(y + at, (wide * tl.load(gain).to(tl.float32)[:, None]).to(dtype))
    return tl.sum(wide * wide, 0)


def project_qkv(x: Scaled, norm: Norm, weight: Weight, out: Tensor, turn: Rotation, beside: Beside) -> Tensor:
    """out (rows, heads + 2 kv_heads, head_dim), rotated, its keys and values written to the cache's slots."""
    (rows, num_all, head_dim), k = out.shape, weight.w.shape[1]
    kv_heads = turn.caches[0].shape[1]
    parts, term = beside.parts, beside.term
    cut = pick_cut(head_dim // 2, num_all, k, rows)
    programs = num_all * cut.splits(k)
    gains = (turn.norms.q, turn.norms.k) if turn.norms else (x.y, x.y)
    _qkv_kernel[(_low_programs(term) + programs,)](
        x.y, weight.w, out, parts.sums, parts.arrived, x.squares, _or(weight.bias, x.y), _or(weight.scale, x.y),
        *_low_args(term, x.y), num_all, *turn.caches, turn.angles, turn.where.positions,
        turn.where.slots, *gains, norm.eps, turn.norms.eps if turn.norms else 0.0, k, cut.depth,
        *later_args(beside.later, programs),
        TILES=x.squares.shape[0], BIAS=weight.bias is not None, HEADS=num_all - 2 * kv_heads, KV_HEADS=kv_heads,
        NORM=turn.norms is not None, **_shape(cut, rows, weight), **_terms(weight, beside), **overlap(),
    )  # fmt: skip
    return out


def project_swiglu(x: Scaled, norm: Norm, weight: Weight, out: Tensor, beside: Beside) -> Tensor:
    """out (rows, ffn) = silu(gate) * up of the normed input, with `weight` holding gate above up."""
    (rows, n), k = out.shape, weight.w.shape[1]
    block_n = pick_columns(n)
    cut = pick_cut(block_n, n // block_n, k, rows)
    parts, term, programs = beside.parts, beside.term, n // block_n * cut.splits(k)
    _swiglu_kernel[(_low_programs(term) + programs,)](
        x.y, weight.w, out, parts.sums, parts.arrived, x.squares, _or(weight.scale, x.y),
        *_low_args(term, x.y), n // block_n, norm.eps, k, n, cut.depth,
        *later_args(beside.later, programs),
        TILES=x.squares.shape[0], **_shape(cut, rows, weight), **_terms(weight, beside), **overlap(),
    )  # fmt: skip
    return out


def project_add(x: Tensor, weight: Weight, stream: Tensor, after: tuple[Norm, Scaled], beside: Beside) -> Tensor:
    """stream += W x, in place; `after` names the norm that follows and where its input goes."""
    (n, k), rows = weight.w.shape, x.shape[0]
    norm, scaled = after
    block_n = pick_columns(n // 2)
    cut = pick_cut(block_n, n // (2 * block_n), k, rows)
    parts, term, programs = beside.parts, beside.term, n // (2 * block_n) * cut.splits(k)
    _add_kernel[(_low_programs(term) + programs,)](
        x, weight.w, stream, scaled.y, parts.sums, parts.arrived, scaled.squares, norm.gain, _or(weight.scale, x),
        *_low_args(term, x), n // (2 * block_n), k, n, cut.depth,
        *later_args(beside.later, programs),
        **_shape(cut, rows, weight), **_terms(weight, beside), **overlap(),
    )  # fmt: skip
    return stream


def low_parts(depth: int) -> int:
    """How many programs share the depth of A x: so many that it is there before the weights are read."""
    return max(1, min(8, depth // 1536))


def square_tiles(dim: int) -> int:
    """Tiles of the linears that complete the residual stream."""
    return dim // (2 * pick_columns(dim // 2))


def part_floats(shapes: list[tuple[int, int, int]], rows: int) -> int:
    """Room for the splits of linears given as (tiles, columns of a tile, depth)."""
    splits = [pick_cut(columns // 2, tiles, k, rows).splits(k) for tiles, columns, k in shapes]
    return max(count * tiles * columns * rows for count, (tiles, columns, _) in zip(splits, shapes, strict=True))


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    return other if tensor is None else tensor


def _shape(cut: Cut, rows: int, weight: Weight) -> dict[str, int | bool]:
    k = weight.w.shape[1]
    # As many bytes under way whatever the width of a number.
    stages = cut.num_stages * 2 // weight.w.element_size()
    lines = min(4, 1 << ((cut.depth // 64).bit_length() - 1))
    return {
        "ROWS": rows, "BLOCK_N": cut.block_n, "BLOCK_K": cut.block_k, "SPLITS": cut.splits(k),
        "EVEN": cut.is_even(k), "LINES": lines, "num_warps": cut.num_warps, "num_stages": stages,
    }  # fmt: skip


def _low_programs(term: LowRankTerm | None) -> int:
    return term.num_programs if term else 0


def _low_args(term: LowRankTerm | None, other: Tensor) -> tuple[Tensor | int, ...]:
    """low, b, a, gate, ready, and how deep one part of A x goes; stand-ins without a term."""
    if term is None:
        return (other,) * 5 + (0,)
    depth = triton.cdiv(triton.cdiv(term.a.shape[1], term.low.shape[0]), 64) * 64
    return term.low, term.b, term.a, term.gate, term.ready, depth


def _terms(weight: Weight, beside: Beside) -> dict[str, int | bool]:
    term = beside.term
    parts, rank = (term.low.shape[0], term.b.shape[1]) if term else (1, 0)
    return {"SCALE": weight.scale is not None, "PARTS": parts, "RANK": rank, "LATER": beside.later is not None}
