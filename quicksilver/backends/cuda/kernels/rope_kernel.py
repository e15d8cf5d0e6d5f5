"""Query and key norms, rotary embedding, and the write into the paged KV cache.

In place on the qkv buffer of one layer. One program per head and block of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from quicksilver.backends.cuda.kernels.launch import pdl_options, pdl_wait_and_launch
from quicksilver.model.transformer import Rope


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Gains of the query and key norms, each (head_dim,)."""

    q: Tensor
    k: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class RowSlots:
    """Position of each row, and the cache slot for its KV or -1. int32."""

    positions: Tensor
    slots: Tensor


def angle_table(rope: Rope, context_len: int, head_dim: int = 0) -> Tensor:
    """(context_len, 2, head_dim / 2) fp32: cosines and sines of every position, from the network's own `Rope`. Of a
    partial rotation the angles beyond it are zero; `head_dim` 0 is that of a full one."""
    cos, sin = rope(torch.arange(context_len, device=rope.inv_freq.device))
    half = cos.shape[-1] // 2
    missing = max(head_dim // 2 - half, 0)
    cos, sin = pad(cos[:, 0, :half], (0, missing), value=1.0), pad(sin[:, 0, :half], (0, missing))
    return torch.stack((cos, sin), dim=1).contiguous()


@triton.jit
def head_halves(i, D: tl.constexpr, ROTARY: tl.constexpr):
    """Indices of the dimensions that angle i rotates. Of a partial rotation the first ROTARY / 2 angles belong to the
    halves of the rotated dimensions, the others are zero."""
    if ROTARY == D:
        left, right = i, i + D // 2
    else:
        is_rotated = i < ROTARY // 2
        left = i + tl.where(is_rotated, 0, ROTARY // 2)
        right = i + tl.where(is_rotated, ROTARY // 2, D // 2)
    return left, right


@triton.jit
def _load_half(
    qkv, sums, bias, at, first, d, is_row, num_rows,
    ALL_HEADS: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Half of a head: from qkv, or the total of the splits of `sums` and the bias, rounded as qkv is."""
    if SPLITS == 0:
        return tl.load(qkv + at + d[None, :], mask=is_row, other=0.0).to(tl.float32)
    total = tl.load(sums + at + d[None, :], mask=is_row, other=0.0)
    for split in tl.static_range(1, SPLITS):
        plane = sums + split * num_rows.to(tl.int64) * (ALL_HEADS * D)
        total += tl.load(plane + at + d[None, :], mask=is_row, other=0.0)
    if BIAS:
        total += tl.load(bias + first + d).to(tl.float32)[None, :]
    return total.to(qkv.dtype.element_ty).to(tl.float32)


@triton.jit
def _rotate_kernel(
    qkv, sums, bias, k_cache, v_cache, angles, positions, slots, q_gain, k_gain, eps, num_rows,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_R: tl.constexpr, NORM: tl.constexpr,
    ROTARY: tl.constexpr, SPLITS: tl.constexpr, BIAS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait_and_launch(PDL)
    head = tl.program_id(1)
    HALF: tl.constexpr = D // 2
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    d = tl.arange(0, HALF)
    is_row = (r < num_rows)[:, None]
    left_d, right_d = head_halves(d, D, ROTARY)
    at = (r.to(tl.int64) * (HEADS + 2 * KV_HEADS) * D + head * D)[:, None]
    left = _load_half(qkv, sums, bias, at, head * D, left_d, is_row, num_rows, HEADS + 2 * KV_HEADS, D, SPLITS, BIAS)
    right = _load_half(qkv, sums, bias, at, head * D, right_d, is_row, num_rows, HEADS + 2 * KV_HEADS, D, SPLITS, BIAS)
    is_value = head >= HEADS + KV_HEADS
    if not is_value:
        if NORM:
            gain = q_gain if head < HEADS else k_gain
            mean = (tl.sum(left * left, 1) + tl.sum(right * right, 1)) / D
            inv_rms = tl.rsqrt(mean + eps)[:, None]
            left = left * inv_rms * tl.load(gain + left_d).to(tl.float32)[None, :]
            right = right * inv_rms * tl.load(gain + right_d).to(tl.float32)[None, :]
        position = tl.load(positions + r, mask=r < num_rows, other=0).to(tl.int64)
        angle_row = angles + (position * D)[:, None] + d[None, :]
        cos, sin = tl.load(angle_row, mask=is_row, other=0.0), tl.load(angle_row + HALF, mask=is_row, other=0.0)
        left, right = left * cos - right * sin, right * cos + left * sin
    if (head < HEADS + KV_HEADS) | (SPLITS > 0):
        tl.store(qkv + at + left_d[None, :], left.to(qkv.dtype.element_ty), mask=is_row)
        tl.store(qkv + at + right_d[None, :], right.to(qkv.dtype.element_ty), mask=is_row)
    if head >= HEADS:
        slot = tl.load(slots + r, mask=r < num_rows, other=-1).to(tl.int64)
        is_cached = (slot >= 0)[:, None] & is_row
        store = v_cache if is_value else k_cache
        kv_head = (head - HEADS) % KV_HEADS
        to = (slot * (KV_HEADS * D) + kv_head * D)[:, None]
        tl.store(store + to + left_d[None, :], left.to(k_cache.dtype.element_ty), mask=is_cached)
        tl.store(store + to + right_d[None, :], right.to(k_cache.dtype.element_ty), mask=is_cached)


def rotate_and_write(
    qkv: Tensor,
    caches: tuple[Tensor, Tensor],
    rows: RowSlots,
    angles: Tensor,
    norms: HeadNorms | None,
    rotary_dim: int = 0,
    sums: tuple[Tensor, Tensor | None] | None = None,
) -> None:
    """In place on qkv (rows, heads + 2 kv_heads, head_dim); `caches` are one layer's (slots, kv_heads, head_dim).
    `rotary_dim`: leading dimensions of a head that are rotated; 0 is all. With `sums`, qkv is their total: fp32 sums of
    splits (splits, rows, outputs), and a bias."""
    num_rows, num_all, head_dim = qkv.shape
    kv_heads = caches[0].shape[1]
    block_r = 1 if num_rows <= 64 else 8
    gains = (norms.q, norms.k, norms.eps) if norms is not None else (angles, angles, 0.0)
    _rotate_kernel[(triton.cdiv(num_rows, block_r), num_all)](
        qkv, *((qkv, qkv) if sums is None else (sums[0], qkv if sums[1] is None else sums[1])), *caches, angles,
        rows.positions, rows.slots, *gains, num_rows,
        HEADS=num_all - 2 * kv_heads, KV_HEADS=kv_heads, D=head_dim, BLOCK_R=block_r, NORM=norms is not None,
        ROTARY=rotary_dim or head_dim, SPLITS=0 if sums is None else len(sums[0]),
        BIAS=sums is not None and sums[1] is not None,
        num_warps=1 if block_r == 1 else 4, **pdl_options(),
    )  # fmt: skip
