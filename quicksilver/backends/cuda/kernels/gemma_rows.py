"""Row-wise kernels of DiffusionGemma's layers; one program per row, and per head in `write_heads`.

Values are rounded to the dtype of the network where plain torch rounds them (`model/gemma.py`). Where `steps` is given,
an output is fp8 with one scale per row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.backends.cuda.kernels.fp8 import fp8_step
from quicksilver.backends.cuda.kernels.launch import pdl_options, pdl_wait_and_launch

_NUM_WARPS = 8


@dataclass(frozen=True, slots=True)
class Rows:
    """Inputs of a linear: (rows, dim) in the dtype of the network, or fp8 with `steps`, (rows, 1) fp32 scales."""

    values: Tensor
    steps: Tensor | None = None

    @classmethod
    def empty(cls, num_rows: int, dim: int, like: Tensor, is_fp8: bool) -> Rows:
        dtype = torch.float8_e4m3fn if is_fp8 else like.dtype
        values = torch.empty(num_rows, dim, dtype=dtype, device=like.device)
        return cls(values, torch.empty(num_rows, 1, device=like.device) if is_fp8 else None)

    @property
    def steps_or_values(self) -> Tensor:
        return self.values if self.steps is None else self.steps


@triton.jit
def _store_row(out, steps, row, d, y, dim, FP8: tl.constexpr):
    if FP8:
        step = fp8_step(tl.max(tl.abs(y), 0))
        tl.store(steps + row, step)
        y = y / step
    tl.store(out + row * dim + d, y.to(out.dtype.element_ty), mask=d < dim)


@triton.jit
def _inverse_rms(wide, dim, eps):
    return tl.rsqrt(tl.sum(wide * wide, 0) / dim + eps)


@triton.jit
def _normed(source, row, d, gain, eps, dim, dtype: tl.constexpr):
    """The normed row of `source`, rounded to `dtype`, in fp32."""
    wide = tl.load(source + row * dim + d, mask=d < dim, other=0.0).to(tl.float32)
    gains = tl.load(gain + d, mask=d < dim, other=0.0).to(tl.float32)
    return (wide * _inverse_rms(wide, dim, eps) * gains).to(dtype).to(tl.float32)


@triton.jit
def _begin_kernel(
    tokens, token_ids, scale, conditioning, gate, gain, x, out, steps, eps, dim,
    BLOCK: tl.constexpr, HAS_CANVAS: tl.constexpr, FP8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait_and_launch(PDL)
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    dtype: tl.constexpr = x.dtype.element_ty
    token = tl.load(token_ids + row).to(tl.int64)
    wide = tl.load(tokens + token * dim + d, mask=d < dim, other=0.0).to(tl.float32) * tl.load(scale).to(tl.float32)
    wide = wide.to(dtype).to(tl.float32)
    if HAS_CANVAS:
        added = tl.load(conditioning + row * dim + d, mask=d < dim, other=0.0).to(tl.float32)
        both = (wide + added).to(dtype).to(tl.float32)
        normed = (both * _inverse_rms(both, dim, eps)).to(dtype).to(tl.float32)
        wide = tl.where(tl.load(gate + row) > 0, normed, wide)
    tl.store(x + row * dim + d, wide.to(dtype), mask=d < dim)
    gains = tl.load(gain + d, mask=d < dim, other=0.0).to(tl.float32)
    _store_row(out, steps, row, d, wide * _inverse_rms(wide, dim, eps) * gains, dim, FP8)


@triton.jit
def _after_attention_kernel(
    x, added, added_gain, dense_gain, sparse_gain, dense, dense_steps, sparse, sparse_steps, inverse_rms, eps, dim,
    BLOCK: tl.constexpr, FP8: tl.constexpr, SPARSE_FP8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait_and_launch(PDL)
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    dtype: tl.constexpr = x.dtype.element_ty
    wide = tl.load(x + row * dim + d, mask=d < dim, other=0.0).to(tl.float32)
    wide = (wide + _normed(added, row, d, added_gain, eps, dim, dtype)).to(dtype)
    tl.store(x + row * dim + d, wide, mask=d < dim)
    wide = wide.to(tl.float32)
    inverse = _inverse_rms(wide, dim, eps)
    tl.store(inverse_rms + row, inverse)
    gains = tl.load(dense_gain + d, mask=d < dim, other=0.0).to(tl.float32)
    _store_row(dense, dense_steps, row, d, wide * inverse * gains, dim, FP8)
    gains = tl.load(sparse_gain + d, mask=d < dim, other=0.0).to(tl.float32)
    _store_row(sparse, sparse_steps, row, d, wide * inverse * gains, dim, SPARSE_FP8)


@triton.jit
def _end_layer_kernel(
    x, dense, parts, weights, dense_gain, sparse_gain, sum_gain, scalars, gate, next_gain, out, steps, eps, dim,
    BLOCK: tl.constexpr, TOP_K: tl.constexpr, FP8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait_and_launch(PDL)
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    dtype: tl.constexpr = x.dtype.element_ty
    is_dim = d < dim
    first = _normed(dense, row, d, dense_gain, eps, dim, dtype)
    total = tl.zeros((BLOCK,), tl.float32)
    for place in tl.static_range(TOP_K):
        pair = row * TOP_K + place
        part = tl.load(parts + pair * dim + d, mask=is_dim, other=0.0).to(tl.float32)
        total += part * tl.load(weights + pair)
    wide = total.to(dtype).to(tl.float32)
    gains = tl.load(sparse_gain + d, mask=is_dim, other=0.0).to(tl.float32)
    second = (wide * _inverse_rms(wide, dim, eps) * gains).to(dtype).to(tl.float32)
    both = (first + second).to(dtype).to(tl.float32)
    gains = tl.load(sum_gain + d, mask=is_dim, other=0.0).to(tl.float32)
    both = (both * _inverse_rms(both, dim, eps) * gains).to(dtype).to(tl.float32)
    wide = (tl.load(x + row * dim + d, mask=is_dim, other=0.0).to(tl.float32) + both).to(dtype).to(tl.float32)
    scalar = tl.load(scalars + (tl.load(gate + row) > 0).to(tl.int32)).to(tl.float32)
    wide = (wide * scalar).to(dtype)
    tl.store(x + row * dim + d, wide, mask=is_dim)
    wide = wide.to(tl.float32)
    gains = tl.load(next_gain + d, mask=is_dim, other=0.0).to(tl.float32)
    _store_row(out, steps, row, d, wide * _inverse_rms(wide, dim, eps) * gains, dim, FP8)


@triton.jit
def _gelu_kernel(gate_up, out, steps, ffn, BLOCK: tl.constexpr, FP8: tl.constexpr, PDL: tl.constexpr):
    pdl_wait_and_launch(PDL)
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    dtype: tl.constexpr = gate_up.dtype.element_ty
    gate = tl.load(gate_up + row * 2 * ffn + d, mask=d < ffn, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * ffn + ffn + d, mask=d < ffn, other=0.0).to(tl.float32)
    inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
    active = (gate * tl.sigmoid(2.0 * inner)).to(dtype).to(tl.float32)
    _store_row(out, steps, row, d, active * up, ffn, FP8)


@triton.jit
def _heads_kernel(
    source, out, k_cache, v_cache, angles, slots, q_gain, k_gain, eps, num_rows, slot_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SOURCE_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_R: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait_and_launch(PDL)
    head = tl.program_id(1)
    HALF: tl.constexpr = D // 2
    dtype: tl.constexpr = out.dtype.element_ty
    r, d = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R), tl.arange(0, HALF)
    is_row = (r < num_rows)[:, None]
    # Values are made from the keys where the linear has none of its own.
    source_head = tl.where(head >= SOURCE_HEADS, head - KV_HEADS, head)
    at = (r.to(tl.int64) * SOURCE_HEADS * D + source_head * D)[:, None] + d[None, :]
    left = tl.load(source + at, mask=is_row, other=0.0).to(tl.float32)
    right = tl.load(source + at + HALF, mask=is_row, other=0.0).to(tl.float32)
    inverse = tl.rsqrt((tl.sum(left * left, 1) + tl.sum(right * right, 1)) / D + eps)[:, None]
    left, right = left * inverse, right * inverse
    is_value = head >= HEADS + KV_HEADS
    if not is_value:
        gain = q_gain if head < HEADS else k_gain
        left = (left * tl.load(gain + d).to(tl.float32)[None, :]).to(dtype).to(tl.float32)
        right = (right * tl.load(gain + HALF + d).to(tl.float32)[None, :]).to(dtype).to(tl.float32)
        angle_row = angles + (r.to(tl.int64) * D)[:, None] + d[None, :]
        cos, sin = tl.load(angle_row, mask=is_row, other=0.0), tl.load(angle_row + HALF, mask=is_row, other=0.0)
        left, right = left * cos - right * sin, right * cos + left * sin
    to = (r.to(tl.int64) * (HEADS + 2 * KV_HEADS) * D + head * D)[:, None] + d[None, :]
    tl.store(out + to, left.to(dtype), mask=is_row)
    tl.store(out + to + HALF, right.to(dtype), mask=is_row)
    if head >= HEADS:
        slot = tl.load(slots + r, mask=r < num_rows, other=-1).to(tl.int64)
        is_cached = (slot >= 0)[:, None] & is_row
        store = v_cache if is_value else k_cache
        to = (slot * slot_stride + (head - HEADS) % KV_HEADS * D)[:, None] + d[None, :]
        tl.store(store + to, left.to(k_cache.dtype.element_ty), mask=is_cached)
        tl.store(store + to + HALF, right.to(k_cache.dtype.element_ty), mask=is_cached)


def begin_rows(
    tokens: Tensor, token_ids: Tensor, scale: Tensor, conditioning: tuple[Tensor, Tensor] | None, gain: Tensor,
    eps: float, x: Tensor, out: Rows,
) -> None:  # fmt: skip
    """x = scaled embeddings, where the gate is 1 with the conditioning added and normed; `out` = the norm of x.
    `conditioning`: the term of each row, and the gate."""
    added, gate = conditioning or (x, token_ids)
    num_rows, dim = x.shape
    _begin_kernel[(num_rows,)](
        tokens, token_ids, scale, added, gate, gain, x, out.values, out.steps_or_values, eps, dim,
        BLOCK=triton.next_power_of_2(dim), HAS_CANVAS=conditioning is not None, FP8=out.steps is not None,
        num_warps=_NUM_WARPS,
        **pdl_options(),
    )  # fmt: skip


def after_attention(
    x: Tensor, added: Tensor, gains: tuple[Tensor, Tensor, Tensor], eps: float, dense: Rows, sparse: Rows,
    inverse_rms: Tensor,
) -> None:  # fmt: skip
    """x += norm(added); `dense` and `sparse` = two norms of x; `inverse_rms` (rows,) fp32 = that of x."""
    num_rows, dim = x.shape
    _after_attention_kernel[(num_rows,)](
        x, added, *gains, dense.values, dense.steps_or_values, sparse.values, sparse.steps_or_values, inverse_rms,
        eps, dim, BLOCK=triton.next_power_of_2(dim), FP8=dense.steps is not None, SPARSE_FP8=sparse.steps is not None,
        num_warps=_NUM_WARPS,
        **pdl_options(),
    )  # fmt: skip


def end_layer(
    x: Tensor, dense: Tensor, sparse: tuple[Tensor, Tensor], gains: tuple[Tensor, Tensor, Tensor], scalars: Tensor,
    gate: Tensor, next_gain: Tensor, eps: float, out: Rows,
) -> None:  # fmt: skip
    """x = (x + norm(norm(dense) + norm(sparse))) * scalar; `out` = the next norm of x. `sparse`: the outputs of the
    experts of each row (rows * top_k, dim), and their weights (rows, top_k). `scalars`: that of context rows and that
    of canvas rows, whose gate is 1."""
    num_rows, dim = x.shape
    _end_layer_kernel[(num_rows,)](
        x, dense, *sparse, *gains, scalars, gate, next_gain, out.values, out.steps_or_values, eps, dim,
        BLOCK=triton.next_power_of_2(dim), TOP_K=sparse[1].shape[1], FP8=out.steps is not None, num_warps=_NUM_WARPS,
        **pdl_options(),
    )  # fmt: skip


def gelu_rows(gate_up: Tensor, out: Rows) -> Rows:
    num_rows, ffn = out.values.shape
    _gelu_kernel[(num_rows,)](
        gate_up, out.values, out.steps_or_values, ffn,
        BLOCK=triton.next_power_of_2(ffn), FP8=out.steps is not None, num_warps=_NUM_WARPS,
        **pdl_options(),
    )  # fmt: skip
    return out


def write_heads(
    source: Tensor, out: Tensor, caches: tuple[Tensor, Tensor], angles: Tensor, slots: Tensor,
    gains: tuple[Tensor, Tensor], eps: float, kv_heads: int,
) -> None:  # fmt: skip
    """`out` (rows, heads + 2 kv_heads, head_dim) = normed heads of `source`, queries and keys rotated; keys and values
    also to the slots of one layer's cache. `source` has no values of its own where it has kv_heads heads less. `angles`
    (rows, 2, head_dim / 2): cosines and sines."""
    num_rows, num_all, head_dim = out.shape
    block_r = max(min(1024 // head_dim, 8), 1)
    _heads_kernel[(triton.cdiv(num_rows, block_r), num_all)](
        source, out, *caches, angles, slots, *gains, eps, num_rows, caches[0].stride(0),
        HEADS=num_all - 2 * kv_heads, KV_HEADS=kv_heads, SOURCE_HEADS=source.shape[1] // head_dim, D=head_dim,
        BLOCK_R=block_r, num_warps=4, **pdl_options(),
    )  # fmt: skip
