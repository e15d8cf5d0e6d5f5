"""Query and key norms, rotary embedding, and the write into the paged KV cache.

In place on the qkv buffer of one layer. One program per head and block of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

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


def angle_table(rope: Rope, context_len: int) -> Tensor:
    """(context_len, 2, head_dim / 2) fp32: cosines and sines of every position, from the network's own `Rope`."""
    cos, sin = rope(torch.arange(context_len, device=rope.inv_freq.device))
    half = cos.shape[-1] // 2
    return torch.stack((cos[:, 0, :half], sin[:, 0, :half]), dim=1).contiguous()


@triton.jit
def _rotate_kernel(
    qkv, k_cache, v_cache, angles, positions, slots, q_gain, k_gain, eps, num_rows,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_R: tl.constexpr, NORM: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait_and_launch(PDL)
    head = tl.program_id(1)
    HALF: tl.constexpr = D // 2
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    d = tl.arange(0, HALF)
    is_row = (r < num_rows)[:, None]
    at = (r.to(tl.int64) * (HEADS + 2 * KV_HEADS) * D + head * D)[:, None] + d[None, :]
    left = tl.load(qkv + at, mask=is_row, other=0.0).to(tl.float32)
    right = tl.load(qkv + at + HALF, mask=is_row, other=0.0).to(tl.float32)
    is_value = head >= HEADS + KV_HEADS
    if not is_value:
        if NORM:
            gain = q_gain if head < HEADS else k_gain
            mean = (tl.sum(left * left, 1) + tl.sum(right * right, 1)) / D
            inv_rms = tl.rsqrt(mean + eps)[:, None]
            left = left * inv_rms * tl.load(gain + d).to(tl.float32)[None, :]
            right = right * inv_rms * tl.load(gain + HALF + d).to(tl.float32)[None, :]
        position = tl.load(positions + r, mask=r < num_rows, other=0).to(tl.int64)
        angle_row = angles + (position * D)[:, None] + d[None, :]
        cos, sin = tl.load(angle_row, mask=is_row, other=0.0), tl.load(angle_row + HALF, mask=is_row, other=0.0)
        left, right = left * cos - right * sin, right * cos + left * sin
        tl.store(qkv + at, left.to(qkv.dtype.element_ty), mask=is_row)
        tl.store(qkv + at + HALF, right.to(qkv.dtype.element_ty), mask=is_row)
    if head >= HEADS:
        slot = tl.load(slots + r, mask=r < num_rows, other=-1).to(tl.int64)
        is_cached = (slot >= 0)[:, None] & is_row
        store = v_cache if is_value else k_cache
        kv_head = (head - HEADS) % KV_HEADS
        to = (slot * (KV_HEADS * D) + kv_head * D)[:, None] + d[None, :]
        tl.store(store + to, left.to(k_cache.dtype.element_ty), mask=is_cached)
        tl.store(store + to + HALF, right.to(k_cache.dtype.element_ty), mask=is_cached)


def rotate_and_write(
    qkv: Tensor, caches: tuple[Tensor, Tensor], rows: RowSlots, angles: Tensor, norms: HeadNorms | None
) -> None:
    """In place on qkv (rows, heads + 2 kv_heads, head_dim); `caches` are one layer's (slots, kv_heads, head_dim)."""
    num_rows, num_all, head_dim = qkv.shape
    kv_heads = caches[0].shape[1]
    block_r = 1 if num_rows <= 64 else 8
    gains = (norms.q, norms.k, norms.eps) if norms is not None else (angles, angles, 0.0)
    _rotate_kernel[(triton.cdiv(num_rows, block_r), num_all)](
        qkv, *caches, angles, rows.positions, rows.slots, *gains, num_rows,
        HEADS=num_all - 2 * kv_heads, KV_HEADS=kv_heads, D=head_dim, BLOCK_R=block_r, NORM=norms is not None,
        num_warps=1 if block_r == 1 else 4, **pdl_options(),
    )  # fmt: skip
