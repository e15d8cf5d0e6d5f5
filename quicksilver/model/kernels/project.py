"""Projections of few rows, where reading the weights is all the time there is: norm, matrix, low-rank term and what
follows in one kernel.

A program owns a few output columns and streams their weights once. Up to 32 rows the order of summation depends on the
weights' shape alone, so a row gets the same numbers whatever its company. Rows must fill the tile: buffers come padded.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from quicksilver.model.kernels.launch import overlap, wait_turn


@dataclass(frozen=True, slots=True)
class Tile:
    """Columns and depth of a program's tile, and how it is scheduled."""

    block_n: int
    block_k: int = 128
    num_warps: int = 4
    num_stages: int = 4


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm of the input, folded into the projection."""

    gain: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class LowRankTerm:
    """`low` (parts, rows, rank) fp32, the gated A x whose parts are summed here; `b` (out, rank)."""

    low: Tensor
    b: Tensor


@triton.jit
def _load_x(x, gain, m, k, K, squares, NORM: tl.constexpr, EVEN: tl.constexpr):
    """A block of the input times the norm's gain; `squares` gathers x^2 for the norm's divisor, applied at the end."""
    if EVEN:
        tile = tl.load(x + m[:, None] * K + k[None, :])
    else:
        tile = tl.load(x + m[:, None] * K + k[None, :], mask=(k < K)[None, :], other=0.0)
    if NORM:
        wide = tile.to(tl.float32)
        squares += tl.sum(wide * wide, 1)
        gains = tl.load(gain + k) if EVEN else tl.load(gain + k, mask=k < K, other=0.0)
        tile = (wide * gains.to(tl.float32)[None, :]).to(tile.dtype)
    return tile, squares


@triton.jit
def _times(x_tile, w, n, k, K, acc, EVEN: tl.constexpr):
    """acc += x w^T over one block of the depth."""
    at = n.to(tl.int64)[:, None] * K + k[None, :]
    w_tile = tl.load(w + at) if EVEN else tl.load(w + at, mask=(k < K)[None, :], other=0.0)
    return tl.dot(x_tile, tl.trans(w_tile.to(x_tile.dtype)), acc, input_precision="ieee")


@triton.jit
def _low_rank(low, b, m, n, num_rows, PARTS: tl.constexpr, RANK: tl.constexpr):
    """(gated A x) B^T for the tile's columns."""
    r = tl.arange(0, RANK)
    at = m[:, None] * RANK + r[None, :]
    t = tl.load(low + at)
    for part in tl.static_range(1, PARTS):
        t += tl.load(low + part * num_rows * RANK + at)
    b_tile = tl.load(b + n.to(tl.int64)[:, None] * RANK + r[None, :])
    return tl.dot(t.to(b_tile.dtype), tl.trans(b_tile), input_precision="ieee")


@triton.jit
def _project_kernel(
    x, w, out, gain, bias, residual, scale, low, b, eps, K, N,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
    NORM: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, SCALE: tl.constexpr,
    PARTS: tl.constexpr, RANK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Two accumulators, one for each half of the depth: two chains of dependent products hide each other's latency."""
    wait_turn(OVERLAPS)
    m, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    half = tl.cdiv(K, 2 * BLOCK_K) * BLOCK_K
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    acc_b = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    squares = tl.zeros((BLOCK_M,), tl.float32)
    squares_b = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(0, half, BLOCK_K):
        x_tile, squares = _load_x(x, gain, m, start + k, K, squares, NORM, EVEN)
        acc = _times(x_tile, w, n, start + k, K, acc, EVEN)
        x_tile, squares_b = _load_x(x, gain, m, half + start + k, K, squares_b, NORM, EVEN)
        acc_b = _times(x_tile, w, n, half + start + k, K, acc_b, EVEN)
    acc += acc_b
    if SCALE:
        acc = acc * tl.load(scale + n)[None, :]
    if NORM:
        acc = acc * tl.rsqrt((squares + squares_b) / K + eps)[:, None]
    if RANK > 0:
        acc += _low_rank(low, b, m, n, BLOCK_M, PARTS, RANK)
    if BIAS:
        acc += tl.load(bias + n).to(tl.float32)[None, :]
    at = m[:, None] * N + n[None, :]
    if RESIDUAL:
        # Rounded before it is added, as a linear layer's output is.
        acc = acc.to(out.dtype.element_ty).to(tl.float32) + tl.load(residual + at).to(tl.float32)
    tl.store(out + at, acc.to(out.dtype.element_ty))


@triton.jit
def _swiglu_kernel(
    x, w, out, gain, scale, low, b, eps, K, N,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr, SCALE: tl.constexpr,
    PARTS: tl.constexpr, RANK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up of the normed input; w holds N gate rows, then N up rows."""
    wait_turn(OVERLAPS)
    m, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    squares = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(0, K, BLOCK_K):
        x_tile, squares = _load_x(x, gain, m, start + k, K, squares, True, EVEN)
        gate = _times(x_tile, w, n, start + k, K, gate, EVEN)
        up = _times(x_tile, w, N + n, start + k, K, up, EVEN)
    if SCALE:
        gate = gate * tl.load(scale + n)[None, :]
        up = up * tl.load(scale + N + n)[None, :]
    shrink = tl.rsqrt(squares / K + eps)[:, None]
    gate, up = gate * shrink, up * shrink
    if RANK > 0:
        gate += _low_rank(low, b, m, n, BLOCK_M, PARTS, RANK)
        up += _low_rank(low, b, m, N + n, BLOCK_M, PARTS, RANK)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + m[:, None] * N + n[None, :], y.to(out.dtype.element_ty))


@triton.jit
def _low_kernel(
    x, a, low, gain, gate, eps, K, depth,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, NORM: tl.constexpr, RANK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """gate * (x A^T), one part of the depth a program; a normed input is never cut, its divisor needs all of it."""
    wait_turn(OVERLAPS)
    part = tl.program_id(1)
    m, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    squares = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(part * depth, tl.minimum(part * depth + depth, K), BLOCK_K):
        x_tile, squares = _load_x(x, gain, m, start + k, K, squares, NORM, False)
        acc = _times(x_tile, a, n, start + k, K, acc, False)
    if NORM:
        acc = acc * tl.rsqrt(squares / K + eps)[:, None]
    acc = acc * tl.load(gate + m).to(tl.float32)[:, None]
    tl.store(low + part * BLOCK_M * RANK + m[:, None] * RANK + n[None, :], acc)


@dataclass(frozen=True, slots=True)
class Weight:
    """A linear's weights: (out, in), in the model's dtype or fp8 with one fp32 scale an output; and its bias."""

    w: Tensor
    bias: Tensor | None = None
    scale: Tensor | None = None


def project(
    x: Tensor, weight: Weight, out: Tensor, norm: Norm | None, residual: Tensor | None, term: LowRankTerm | None
) -> Tensor:
    """out = norm(x) W^T + low-rank term + bias, added to `residual` where given (which may be `out` itself)."""
    n, k = weight.w.shape
    tile = pick_tile(n, k, x.shape[0])
    none = x
    _project_kernel[(n // tile.block_n,)](
        x, weight.w, out,
        norm.gain if norm else none, weight.bias if weight.bias is not None else none,
        residual if residual is not None else none, weight.scale if weight.scale is not None else none,
        term.low if term else none, term.b if term else none, norm.eps if norm else 0.0, k, n,
        BLOCK_M=x.shape[0], BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, EVEN=k % (2 * tile.block_k) == 0,
        NORM=norm is not None, BIAS=weight.bias is not None, RESIDUAL=residual is not None,
        SCALE=weight.scale is not None, PARTS=term.low.shape[0] if term else 1, RANK=term.b.shape[1] if term else 0,
        num_warps=tile.num_warps, num_stages=tile.num_stages, **overlap(),
    )  # fmt: skip
    return out


def project_swiglu(x: Tensor, weight: Weight, out: Tensor, norm: Norm, term: LowRankTerm | None) -> Tensor:
    """out (rows, ffn) = silu(gate) * up of norm(x), with `weight` holding gate above up."""
    n, k = weight.w.shape[0] // 2, weight.w.shape[1]
    tile = pick_tile(n, k, x.shape[0])
    _swiglu_kernel[(n // tile.block_n,)](
        x, weight.w, out, norm.gain, weight.scale if weight.scale is not None else x,
        term.low if term else x, term.b if term else x, norm.eps, k, n,
        BLOCK_M=x.shape[0], BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, EVEN=k % tile.block_k == 0,
        SCALE=weight.scale is not None, PARTS=term.low.shape[0] if term else 1, RANK=term.b.shape[1] if term else 0,
        num_warps=tile.num_warps, num_stages=tile.num_stages, **overlap(),
    )  # fmt: skip
    return out


def project_low(x: Tensor, a: Tensor, gate: Tensor, norm: Norm | None, low: Tensor) -> Tensor:
    """low (parts, rows, rank) = gate * (norm(x) A^T), the depth cut into as many parts as `low` has."""
    rank, k = a.shape
    parts = low.shape[0]
    assert norm is None or parts == 1
    block_k = 128
    depth = triton.cdiv(triton.cdiv(k, parts), block_k) * block_k
    _low_kernel[(rank // 16, parts)](
        x, a, low, norm.gain if norm else x, gate, norm.eps if norm else 0.0, k, depth,
        BLOCK_M=x.shape[0], BLOCK_N=16, BLOCK_K=block_k, NORM=norm is not None, RANK=rank,
        num_warps=4, num_stages=4, **overlap(),
    )  # fmt: skip
    return low


def low_parts(depth: int, has_norm: bool) -> int:
    """How many programs share the depth of A x."""
    return 1 if has_norm else max(1, min(8, depth // 1024))


def pick_tile(n: int, k: int, num_rows: int) -> Tile:
    """Narrow outputs get narrow tiles, so that every multiprocessor has some to read; many rows get wide ones, because
    each tile reads all rows. The depth is cut by the weights' shape alone up to 32 rows."""
    block_k = 128 if k % 256 == 0 else 64
    if num_rows <= 16:
        return Tile(32 if n % 32 == 0 and n // 32 >= 256 else 16, block_k)
    if num_rows <= 32:
        return Tile(32 if n % 32 == 0 and n // 32 >= 96 else 16, block_k)
    return Tile(64 if n % 64 == 0 and n // 64 >= 96 else 32 if n % 32 == 0 else 16, 64)
