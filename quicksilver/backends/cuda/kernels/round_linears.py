"""Linears of rounds with 64 or 128 rows, in bfloat16 on Hopper and later: tiles are copied by the tensor memory
accelerator, and what follows a linear is part of the next launch.

Narrow linears (qkv, output, down) split K and store fp32 partial sums. The kernel after them adds the splits in
ascending order: `rotate_sums` after qkv, `add_norm` after output and down. Gate and up end with SwiGLU. K is split in
the same way for any number of rows.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from quicksilver.backends.cuda.kernels.launch import (
    pdl_launch,
    pdl_options,
    pdl_wait,
    pdl_wait_and_launch,
    prefetch_rows,
)
from quicksilver.backends.cuda.kernels.linears import Norm, Weight
from quicksilver.backends.cuda.kernels.weight_streaming import NUM_SMS
from quicksilver.backends.cuda.kernels.weights import NetworkWeights

# Rows of a round that these kernels multiply. With more, cuBLAS is faster.
ROUND_ROWS = (64, 128)
# Weight bytes of the largest network. Every tile of 64 outputs reads all rows, which costs L2 bandwidth in proportion
# to the weights, while what these kernels save is latency. By count; measured with 3.1 GB only.
MAX_BYTES = 4_000_000_000
# Outputs of a tile, and K per pipeline stage: of the narrow linears, and of gate and up, where it is a gate and an up.
_BLOCK_N, _BLOCK_K, _STAGES = 64, 128, 4
_GATE_BLOCK_N, _GATE_BLOCK_K, _GATE_STAGES = 32, 64, {64: 4, 128: 3}
# Strides of a tensor descriptor are multiples of 16 bytes.
_ALIGNMENT = 8
_PREFETCHED_LINES = 4


def can_run_round_linears(weights: NetworkWeights, num_rows: int) -> bool:
    """Whether these kernels support the weights, the GPU and the number of rows."""
    tokens, first = weights.tokens, weights.layers[0]
    if num_rows not in ROUND_ROWS or weights.num_bytes > MAX_BYTES:
        return False
    # Layers with routed experts may follow dense ones.
    if weights.layers[-1].sparse is not None or first.qkv.scale is not None:
        return False
    if tokens.is_cuda and not (tokens.dtype == torch.bfloat16 and _has_tensor_memory_accelerator(tokens.device)):
        return False
    narrow = (first.qkv, first.o, first.down)
    fits = all(weight.w.shape[0] % _BLOCK_N == 0 and weight.depth % _ALIGNMENT == 0 for weight in narrow)
    return fits and first.down.depth % _GATE_BLOCK_N == 0


@cache
def _has_tensor_memory_accelerator(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)


def num_splits(num_outputs: int, depth: int) -> int:
    """The most splits of K whose tiles have an SM each, of equal size if possible."""
    most = max(1, min(NUM_SMS * _BLOCK_N // num_outputs, triton.cdiv(depth, _BLOCK_K)))
    even = [splits for splits in range(most, 0, -1) if depth % (splits * _BLOCK_K) == 0]
    return even[0] if even and 2 * even[0] > most else most


def sums_size(weights: NetworkWeights, num_rows: int) -> int:
    """Size of the largest linear's partial sums."""
    first = weights.layers[0]
    shapes = [(weight.w.shape[0], weight.depth) for weight in (first.qkv, first.o, first.down)]
    return max(num_splits(*shape) * shape[0] for shape in shapes) * num_rows


def _descriptor(x: Tensor, block: list[int]) -> TensorDescriptor:
    return TensorDescriptor(x, list(x.shape), list(x.stride()), block)


@triton.jit
def _sums_kernel(
    x, w_tiles, w, sums, num_outputs, K, depth, tiles,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, LINES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tile, split = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    begin = split * depth
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    prefetch_rows(w, n.to(tl.int64), K, begin, LINES, PDL)
    pdl_wait(PDL)
    acc = tl.zeros((BLOCK_N, ROWS), tl.float32)
    for k in range(begin, tl.minimum(begin + depth, K), BLOCK_K):
        acc = tl.dot(w_tiles.load([tile * BLOCK_N, k]), tl.trans(x.load([0, k])), acc, input_precision="ieee")
    pdl_launch(PDL)
    at = (split * ROWS + tl.arange(0, ROWS))[None, :] * num_outputs + n[:, None]
    tl.store(sums + at, acc)


def linear_sums(x: Tensor, weight: Weight, sums: Tensor) -> Tensor:
    """Partial sums of W x over splits of K -> (splits, rows, outputs) fp32, a view of `sums`."""
    (rows, k), num_outputs = x.shape, weight.w.shape[0]
    splits = num_splits(num_outputs, k)
    depth, tiles = triton.cdiv(triton.cdiv(k, splits), _BLOCK_K) * _BLOCK_K, num_outputs // _BLOCK_N
    splits = triton.cdiv(k, depth)
    _sums_kernel[(tiles * splits,)](
        _descriptor(x, [rows, _BLOCK_K]), _descriptor(weight.w, [_BLOCK_N, _BLOCK_K]), weight.w, sums,
        num_outputs, k, depth, tiles, ROWS=rows, BLOCK_N=_BLOCK_N, BLOCK_K=_BLOCK_K, LINES=_PREFETCHED_LINES,
        num_warps=4, num_stages=_STAGES, **pdl_options(),
    )  # fmt: skip
    return sums[: splits * rows * num_outputs].view(splits, rows, num_outputs)


@triton.jit
def _swiglu_tile_kernel(
    x, w_tiles, w, out, N, K,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, LINES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    prefetch_rows(w, n.to(tl.int64), K, 0, LINES, PDL)
    prefetch_rows(w, n.to(tl.int64) + N, K, 0, LINES, PDL)
    pdl_wait(PDL)
    acc = tl.zeros((ROWS, 2 * BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        pair = tl.reshape(w_tiles.load([0, tile * BLOCK_N, k]), (2 * BLOCK_N, BLOCK_K))
        acc = tl.dot(x.load([0, k]), tl.trans(pair), acc, input_precision="ieee")
    pdl_launch(PDL)
    gate, up = tl.split(tl.permute(tl.reshape(acc, (ROWS, 2, BLOCK_N)), (0, 2, 1)))
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + tl.arange(0, ROWS)[:, None] * N + n[None, :], y.to(out.dtype.element_ty))


def linear_swiglu_tiles(x: Tensor, weight: Weight, out: Tensor) -> Tensor:
    """out (rows, ffn) = silu(gate) * up. `weight` holds the gate rows, then the up rows."""
    (rows, k), n = x.shape, out.shape[1]
    pairs = _descriptor(weight.w.view(2, n, k), [2, _GATE_BLOCK_N, _GATE_BLOCK_K])
    _swiglu_tile_kernel[(n // _GATE_BLOCK_N,)](
        _descriptor(x, [rows, _GATE_BLOCK_K]), pairs, weight.w, out, n, k,
        ROWS=rows, BLOCK_N=_GATE_BLOCK_N, BLOCK_K=_GATE_BLOCK_K, LINES=_PREFETCHED_LINES,
        num_warps=4, num_stages=_GATE_STAGES[rows], **pdl_options(),
    )  # fmt: skip
    return out


@triton.jit
def _add_norm_kernel(
    sums, x, gain, normed, eps, dim, split_stride, BLOCK: tl.constexpr, SPLITS: tl.constexpr, PDL: tl.constexpr
):
    pdl_wait_and_launch(PDL)
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    is_in, at = d < dim, row * dim + d
    total = tl.load(sums + at, mask=is_in, other=0.0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(sums + split * split_stride + at, mask=is_in, other=0.0)
    # Rounded before and after the addition as in the eager network.
    dtype = x.dtype.element_ty
    wide = (total.to(dtype).to(tl.float32) + tl.load(x + at, mask=is_in, other=0.0).to(tl.float32)).to(dtype)
    tl.store(x + at, wide, mask=is_in)
    wide = wide.to(tl.float32)
    inv_rms = tl.rsqrt(tl.sum(wide * wide, 0) / dim + eps)
    y = wide * inv_rms * tl.load(gain + d, mask=is_in, other=0.0).to(tl.float32)
    tl.store(normed + at, y.to(dtype), mask=is_in)


def add_norm(sums: Tensor, x: Tensor, norm: Norm, normed: Tensor) -> None:
    """x += sums of all splits, in place, and its RMS norm."""
    splits, rows, dim = sums.shape
    _add_norm_kernel[(rows,)](
        sums, x, norm.gain, normed, norm.eps, dim, sums.stride(0),
        BLOCK=triton.next_power_of_2(dim), SPLITS=splits, num_warps=4, **pdl_options(),
    )  # fmt: skip
