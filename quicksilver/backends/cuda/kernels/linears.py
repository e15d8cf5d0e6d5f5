"""The four linears of a layer for up to 64 rows, one launch each with all that follows: head norms, rotation and cache
write behind qkv, SwiGLU behind gate and up, the residual behind the outputs.

A norm costs no launch: the linear that completes the residual stream also leaves `Scaled`, the stream times the next
norm's gain and its sums of squares; the linear behind the norm divides at its end. Rows must fill the bucket.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
from torch import Tensor

from quicksilver.backends.cuda.kernels.launch import overlap
from quicksilver.backends.cuda.kernels.linear_kernels import add_kernel, qkv_kernel, swiglu_kernel
from quicksilver.backends.cuda.kernels.rope_kernel import HeadNorms, RowSlots
from quicksilver.backends.cuda.kernels.weight_streaming import (
    Cut,
    Parts,
    pick_columns,
    pick_cut,
    pick_gate_columns,
    pick_rounded_cut,
    room_splits,
)

_FOURS_WARPS = 8
"""Four bits are made wide while others multiply."""


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm's gain (dim,) and epsilon."""

    gain: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Weight:
    """A linear's weights: (out, in), in the model's dtype or fp8 with one fp32 scale an output; and its bias. Or in
    four bits (`words.py`): w is (out, in / 4) words of 16 bits, `groups` (out, in / 32)."""

    w: Tensor
    bias: Tensor | None = None
    scale: Tensor | None = None
    groups: Tensor | None = None

    @property
    def bits(self) -> int:
        """Of a weight."""
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
    """a (rank, in) and b (out, rank) on the rows whose gate is 1. The first programs of the linear's launch leave A x
    in the first plane of `low` and count themselves in `ready`, int32 that must be zero before the launch."""

    a: Tensor
    b: Tensor
    low: Tensor  # (1 + parts, rows, rank) fp32
    gate: Tensor
    ready: Tensor  # (1 + rank / 16,)

    @property
    def num_parts(self) -> int:
        return self.low.shape[0] - 1

    @property
    def num_programs(self) -> int:
        return self.num_parts * (self.a.shape[0] // 16)


@dataclass(frozen=True, slots=True)
class Scaled:
    """A normed input without its divisor: x * gain, and the sums of squares of x, (tiles, rows) fp32. Where y is fp8
    its `steps` are (tiles, rows) too."""

    y: Tensor
    squares: Tensor
    steps: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Beside:
    """What a linear has besides its input, weights and output: room for its splits and an adapter's term; and, where
    these are fp8, the steps of `project_add`'s input and of `project_swiglu`'s output, (stretches, rows) fp32."""

    parts: Parts
    term: LowRankTerm | None = None
    steps: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Rotation:
    """What turns raw qkv into attention's inputs."""

    where: RowSlots
    angles: Tensor
    caches: tuple[Tensor, Tensor]
    norms: HeadNorms | None


def project_qkv(x: Scaled, norm: Norm, weight: Weight, out: Tensor, turn: Rotation, beside: Beside) -> Tensor:
    """out (rows, heads + 2 kv_heads, head_dim), rotated, its keys and values written to the cache's slots."""
    (rows, num_all, head_dim), k = out.shape, weight.depth
    kv_heads = turn.caches[0].shape[1]
    parts, term = beside.parts, beside.term
    cut = _cut(head_dim // 2, num_all, weight, x.steps, rows)
    programs = num_all * cut.splits(k)
    gains = (turn.norms.q, turn.norms.k) if turn.norms else (x.y, x.y)
    qkv_kernel[(_low_programs(term) + programs,)](
        x.y, _steps(x.steps, weight, x.y), weight.w, out, parts.sums, parts.arrived, x.squares,
        _or(weight.bias, x.y), _or(weight.scale, x.y),
        *_low_args(term, x.y), num_all, *turn.caches, turn.angles, turn.where.positions,
        turn.where.slots, *gains, norm.eps, turn.norms.eps if turn.norms else 0.0, k, cut.depth,
        TILES=x.squares.shape[0], BIAS=weight.bias is not None, HEADS=num_all - 2 * kv_heads, KV_HEADS=kv_heads,
        NORM=turn.norms is not None,
        **_shape(cut, rows, num_all, weight), **_terms(weight, beside), **overlap(),
    )  # fmt: skip
    return out


def project_swiglu(x: Scaled, norm: Norm, weight: Weight, out: Tensor, beside: Beside) -> Tensor:
    """out (rows, ffn) = silu(gate) * up of the normed input, with `weight` holding gate above up."""
    (rows, n), k = out.shape, weight.depth
    block_n = pick_gate_columns(n) if x.steps is None and weight.bits > 4 else pick_columns(n)
    cut = _cut(block_n, n // block_n, weight, x.steps, rows)
    parts, term, programs = beside.parts, beside.term, n // block_n * cut.splits(k)
    swiglu_kernel[(_low_programs(term) + programs,)](
        x.y, _steps(x.steps, weight, x.y), weight.w, out, _or(beside.steps, x.y), parts.sums, parts.arrived, x.squares,
        _or(weight.scale, x.y), *_low_args(term, x.y), n // block_n, norm.eps, k, n, cut.depth,
        TILES=x.squares.shape[0],
        **_shape(cut, rows, n // block_n, weight), **_terms(weight, beside), **overlap(),
    )  # fmt: skip
    return out


def project_add(x: Tensor, weight: Weight, stream: Tensor, after: tuple[Norm, Scaled], beside: Beside) -> Tensor:
    """stream += W x, in place; `after` names the norm that follows and where its input goes."""
    n, k, rows = weight.w.shape[0], weight.depth, x.shape[0]
    norm, scaled = after
    block_n = pick_columns(n // 2)
    cut = _cut(block_n, n // (2 * block_n), weight, beside.steps, rows)
    parts, term, programs = beside.parts, beside.term, n // (2 * block_n) * cut.splits(k)
    add_kernel[(_low_programs(term) + programs,)](
        x, _steps(beside.steps, weight, x), weight.w, stream, scaled.y, _or(scaled.steps, x), parts.sums, parts.arrived,
        scaled.squares, norm.gain, _or(weight.scale, x),
        *_low_args(term, x), n // (2 * block_n), k, n, cut.depth,
        **_shape(cut, rows, n // (2 * block_n), weight), **_terms(weight, beside), **overlap(),
    )  # fmt: skip
    return stream


def _cut(block_n: int, num_tiles: int, weight: Weight, steps: Tensor | None, rows: int) -> Cut:
    k = weight.depth
    if steps is not None:
        return pick_rounded_cut(block_n, num_tiles, k, rows, k // len(steps))
    cut = pick_cut(block_n, num_tiles, k, rows, weight.num_bytes / (weight.w.shape[0] * k))
    return replace(cut, num_warps=_FOURS_WARPS) if weight.bits == 4 and 2 * block_n >= 128 else cut


def low_parts(depth: int) -> int:
    """How many programs share the depth of A x: so many that it is there before the weights are read."""
    return max(1, min(16, depth // 256))


def square_tiles(dim: int) -> int:
    """Tiles of the linears that complete the residual stream."""
    return dim // (2 * pick_columns(dim // 2))


def part_floats(shapes: list[tuple[int, int, int]], rows: int) -> int:
    """Room for the splits of linears given as (tiles, columns of a tile, depth)."""
    return max(room_splits(tiles, depth) * tiles * columns * rows for tiles, columns, depth in shapes)


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    return other if tensor is None else tensor


def _steps(steps: Tensor | None, weight: Weight, other: Tensor) -> Tensor:
    """What a product is told besides its numbers: the steps of fp8 inputs, or the groups of four-bit weights."""
    return _or(steps if weight.groups is None else weight.groups, other)


def slice_rows(splits: int) -> int:
    """Rows that are finished at once: the more splits must be added, the fewer, and the more programs do it."""
    return 4 if splits >= 6 else 16


def _finishers(rows: int, splits: int, tiles: int, device: torch.device) -> int:
    """Programs that finish a tile's slices of rows side by side. They wait for each other, so all of them must fit
    on the chip with room to spare; the interpreter runs one program after the other."""
    count = rows // slice_rows(splits)
    while count > 1 and (count > splits or device.type != "cuda" or count * tiles >= _multiprocessors(device)):
        count //= 2
    return count


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _shape(cut: Cut, rows: int, tiles: int, weight: Weight) -> dict[str, int | bool]:
    k = weight.depth
    lines = min(4, 1 << ((cut.depth // 64).bit_length() - 1))
    return {
        "ROWS": rows, "BLOCK_N": cut.block_n, "BLOCK_K": cut.block_k, "SPLITS": cut.splits(k),
        "SLICE": slice_rows(cut.splits(k)),
        "FINISHERS": _finishers(rows, cut.splits(k), tiles, weight.w.device),
        "FP8": cut.group > 0, "GROUP": cut.group or cut.block_k,
        "GROUPS": triton.next_power_of_2(cut.depth // cut.group) if cut.group else 1,
        "EVEN": cut.is_even(k), "LINES": lines, "num_warps": cut.num_warps, "num_stages": cut.num_stages,
    }  # fmt: skip


def _low_programs(term: LowRankTerm | None) -> int:
    return term.num_programs if term else 0


def _low_args(term: LowRankTerm | None, other: Tensor) -> tuple[Tensor | int, ...]:
    """low, b, a, gate, ready, and how deep one part of A x goes; stand-ins without a term."""
    if term is None:
        return (other,) * 5 + (0,)
    depth = triton.cdiv(triton.cdiv(term.a.shape[1], term.num_parts), 64) * 64
    return term.low, term.b, term.a, term.gate, term.ready, depth


def _terms(weight: Weight, beside: Beside) -> dict[str, int | bool]:
    term = beside.term
    parts, rank = (term.num_parts, term.b.shape[1]) if term else (1, 0)
    return {"PARTS": parts, "RANK": rank, "SCALE": weight.scale is not None, "FETCHES": weight.w.is_cuda}
