"""The four linears of a layer for up to 256 rows, one launch each with its epilogue: head norms, RoPE and cache write
after qkv, SwiGLU after gate and up, the residual addition after o and down.

A norm needs no launch. The linear that completes the residual stream also stores a `NormInput`: the stream times the
next norm's gain, and its sums of squares. The linear after the norm divides by the RMS in its epilogue. The number of
rows is padded to a bucket size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
from torch import Tensor

from quicksilver.backends.cuda.kernels.launch import pdl_options
from quicksilver.backends.cuda.kernels.linear_kernels import add_kernel, qkv_kernel, swiglu_kernel
from quicksilver.backends.cuda.kernels.rope_kernel import HeadNorms, RowSlots
from quicksilver.backends.cuda.kernels.weight_streaming import (
    PartialSums,
    Tiling,
    max_splits,
    pick_block_n,
    pick_fp8_tiling,
    pick_gate_block_n,
    pick_tiling,
)

# Some warps dequantise int4 while others multiply.
_INT4_WARPS = 8
# Warps from this number of rows on: with four, the sums would not fit the registers.
_MANY_ROWS, _MANY_ROWS_WARPS = 128, 8


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm's gain (dim,) and epsilon."""

    gain: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Weight:
    """Weights of a linear, (out, in) in the model's dtype or in fp8 with one fp32 scale per output. For int4
    (`int4_packing.py`) `w` is (out, in / 4) 16-bit words and `groups` (out, in / 32)."""

    w: Tensor
    bias: Tensor | None = None
    scale: Tensor | None = None
    groups: Tensor | None = None

    @property
    def bits(self) -> int:
        """Bits per weight."""
        return 4 if self.groups is not None else 8 * self.w.element_size()

    @property
    def depth(self) -> int:
        return self.w.shape[1] * (1 if self.groups is None else 4)

    @property
    def num_bytes(self) -> int:
        tensors = (self.w,) if self.groups is None else (self.w, self.groups)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True, slots=True)
class LowRankTerm:
    """The adapter's term B A x on the rows whose gate is 1: a (rank, in), b (out, rank). The first programs of the
    linear's launch store A x in the first plane of `low` and count themselves in `ready`, which must be zero before."""

    a: Tensor
    b: Tensor
    ax: Tensor  # (1 + parts, rows, rank) fp32
    gate: Tensor
    ready: Tensor  # (1 + rank / 16,)

    @property
    def num_parts(self) -> int:
        return self.ax.shape[0] - 1

    @property
    def num_ctas(self) -> int:
        return self.num_parts * (self.a.shape[0] // 16)


@dataclass(frozen=True, slots=True)
class NormInput:
    """An RMS-norm input before the division: y = x * gain, and sums of squares of x, (tiles, rows) fp32. `steps` are
    the (tiles, rows) scales of an fp8 y."""

    y: Tensor
    squares: Tensor
    steps: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LinearExtras:
    """Further arguments of a linear: buffers of its split-K sums, the canvas adapter's term, the fp32 scales (groups,
    rows) of `linear_add`'s fp8 input or `linear_swiglu`'s fp8 output, and the terms of the row adapters, (rows, out)
    fp32. All terms are those of the input as it is given, before a norm's division."""

    partials: PartialSums
    term: LowRankTerm | None = None
    steps: Tensor | None = None
    row_terms: Tensor | None = None
    is_invariant: bool = False  # one order of additions for any number of rows


@dataclass(frozen=True, slots=True)
class QkvEpilogue:
    """Arguments of the epilogue of qkv: RoPE, head norms, cache write."""

    where: RowSlots
    angles: Tensor
    caches: tuple[Tensor, Tensor]
    norms: HeadNorms | None
    rotary_dim: int = 0  # leading dimensions of a head that are rotated; 0 is all


def linear_qkv(
    x: NormInput, norm: Norm, weight: Weight, out: Tensor, epilogue: QkvEpilogue, extras: LinearExtras
) -> Tensor:
    """out (rows, heads + 2 kv_heads, head_dim) with RoPE applied; keys and values are written to the cache."""
    (rows, num_all, head_dim), k = out.shape, weight.depth
    kv_heads = epilogue.caches[0].shape[1]
    partials, term = extras.partials, extras.term
    tiling = _tiling(head_dim // 2, num_all, weight, x.steps, rows)
    programs = num_all * tiling.splits(k)
    gains = (epilogue.norms.q, epilogue.norms.k) if epilogue.norms else (x.y, x.y)
    qkv_kernel[(_ax_programs(term) + programs,)](
        x.y, _steps(x.steps, weight, x.y), weight.w, out, partials.sums, partials.arrived, x.squares,
        _or_placeholder(weight.bias, x.y), _or_placeholder(weight.scale, x.y),
        *_adapter_args(extras, x.y), num_all, *epilogue.caches, epilogue.angles, epilogue.where.positions,
        epilogue.where.slots, *gains, norm.eps, epilogue.norms.eps if epilogue.norms else 0.0, k, tiling.depth,
        TILES=x.squares.shape[0], BIAS=weight.bias is not None, HEADS=num_all - 2 * kv_heads, KV_HEADS=kv_heads,
        NORM=epilogue.norms is not None, ROTARY=epilogue.rotary_dim or head_dim, FIXED=extras.is_invariant,
        **_shape(tiling, rows, num_all, weight), **_adapter_shape(weight, extras), **pdl_options(),
    )  # fmt: skip
    return out


def linear_swiglu(x: NormInput, norm: Norm, weight: Weight, out: Tensor, extras: LinearExtras) -> Tensor:
    """out (rows, ffn) = silu(gate) * up of the normed input. `weight` holds the gate rows, then the up rows."""
    (rows, n), k = out.shape, weight.depth
    block_n = pick_gate_block_n(n) if x.steps is None and weight.bits > 4 else pick_block_n(n)
    tiling = _tiling(block_n, n // block_n, weight, x.steps, rows)
    partials, term, programs = extras.partials, extras.term, n // block_n * tiling.splits(k)
    swiglu_kernel[(_ax_programs(term) + programs,)](
        x.y, _steps(x.steps, weight, x.y), weight.w, out, _or_placeholder(extras.steps, x.y), partials.sums,
        partials.arrived, x.squares,
        _or_placeholder(weight.scale, x.y), *_adapter_args(extras, x.y), n // block_n, norm.eps, k, n, tiling.depth,
        TILES=x.squares.shape[0],
        **_shape(tiling, rows, n // block_n, weight), **_adapter_shape(weight, extras), **pdl_options(),
    )  # fmt: skip
    return out


def linear_add(
    x: Tensor, weight: Weight, stream: Tensor, after: tuple[Norm, NormInput], extras: LinearExtras
) -> Tensor:
    """stream += W x in place. `after`: the next norm, and the buffers of its input."""
    n, k, rows = weight.w.shape[0], weight.depth, x.shape[0]
    norm, scaled = after
    block_n = pick_block_n(n // 2)
    tiling = _tiling(block_n, n // (2 * block_n), weight, extras.steps, rows)
    partials, term, programs = extras.partials, extras.term, n // (2 * block_n) * tiling.splits(k)
    add_kernel[(_ax_programs(term) + programs,)](
        x, _steps(extras.steps, weight, x), weight.w, stream, scaled.y, _or_placeholder(scaled.steps, x),
        partials.sums, partials.arrived,
        scaled.squares, norm.gain, _or_placeholder(weight.scale, x),
        *_adapter_args(extras, x), n // (2 * block_n), k, n, tiling.depth, FIXED=extras.is_invariant,
        **_shape(tiling, rows, n // (2 * block_n), weight), **_adapter_shape(weight, extras), **pdl_options(),
    )  # fmt: skip
    return stream


def _tiling(block_n: int, num_tiles: int, weight: Weight, steps: Tensor | None, rows: int) -> Tiling:
    k = weight.depth
    if steps is not None:
        tiling = pick_fp8_tiling(block_n, num_tiles, k, rows, k // len(steps))
    else:
        tiling = pick_tiling(block_n, num_tiles, k, rows, weight.num_bytes / (weight.w.shape[0] * k))
    if rows >= _MANY_ROWS:
        return replace(tiling, num_warps=_MANY_ROWS_WARPS)
    return replace(tiling, num_warps=_INT4_WARPS) if weight.bits == 4 and 2 * block_n >= 128 else tiling


def ax_splits(depth: int) -> int:
    """Programs that split K of A x; enough of them that A x is ready before the weights have been read."""
    return max(1, min(16, depth // 256))


def square_tiles(dim: int) -> int:
    """Column tiles of the linears that complete the residual stream."""
    return dim // (2 * pick_block_n(dim // 2))


def partial_sums_size(shapes: list[tuple[int, int, int]], rows: int) -> int:
    """Buffer size for the split-K sums of linears given as (tiles, columns per tile, K)."""
    return max(max_splits(tiles, depth) * tiles * columns * rows for tiles, columns, depth in shapes)


def _or_placeholder(tensor: Tensor | None, other: Tensor) -> Tensor:
    return other if tensor is None else tensor


def _steps(steps: Tensor | None, weight: Weight, other: Tensor) -> Tensor:
    """The scales of fp8 inputs, or the groups of int4 weights."""
    return _or_placeholder(steps if weight.groups is None else weight.groups, other)


def slice_rows(splits: int) -> int:
    """Rows per slice in the split-K reduction. With many splits slices are small, so that more programs share the
    work."""
    return 4 if splits >= 6 else 16


def _finishers(rows: int, splits: int, tiles: int, device: torch.device) -> int:
    """Programs that reduce a tile's slices in parallel. They wait for each other, so all of them must be resident at
    once; the interpreter runs programs one after the other."""
    count = rows // slice_rows(splits)
    while count > 1 and (count > splits or device.type != "cuda" or count * tiles >= _num_sms(device)):
        count //= 2
    return count


@cache
def _num_sms(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _shape(tiling: Tiling, rows: int, tiles: int, weight: Weight) -> dict[str, int | bool]:
    k = weight.depth
    lines = min(4, 1 << ((tiling.depth // 64).bit_length() - 1))
    return {
        "ROWS": rows, "BLOCK_N": tiling.block_n, "BLOCK_K": tiling.block_k, "SPLITS": tiling.splits(k),
        "SLICE": slice_rows(tiling.splits(k)),
        "FINISHERS": _finishers(rows, tiling.splits(k), tiles, weight.w.device),
        "FP8": tiling.group > 0, "GROUP": tiling.group or tiling.block_k,
        "GROUPS": triton.next_power_of_2(tiling.depth // tiling.group) if tiling.group else 1,
        "EVEN": tiling.is_even(k), "LINES": lines, "num_warps": tiling.num_warps, "num_stages": tiling.num_stages,
    }  # fmt: skip


def _ax_programs(term: LowRankTerm | None) -> int:
    return term.num_ctas if term else 0


def _adapter_args(extras: LinearExtras, other: Tensor) -> tuple[Tensor | int, ...]:
    """low, b, a, gate, ready, the K range of one program of A x, and the row terms; placeholders for what is None."""
    term, row_terms = extras.term, _or_placeholder(extras.row_terms, other)
    if term is None:
        return (*(other,) * 5, 0, row_terms)
    depth = triton.cdiv(triton.cdiv(term.a.shape[1], term.num_parts), 64) * 64
    return term.ax, term.b, term.a, term.gate, term.ready, depth, row_terms


def _adapter_shape(weight: Weight, extras: LinearExtras) -> dict[str, int | bool]:
    term = extras.term
    splits, rank = (term.num_parts, term.b.shape[1]) if term else (1, 0)
    return {
        "AX_SPLITS": splits, "RANK": rank, "SCALE": weight.scale is not None, "PREFETCHES": weight.w.is_cuda,
        "TERMS": extras.row_terms is not None,
    }  # fmt: skip
