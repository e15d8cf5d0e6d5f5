"""Routed experts for hundreds of rows: every expert has several, and fp8 weights meet fp8 inputs in the MMA.

With `experts.py`, whose inputs of fp8 weights are fp16, such batches would be bound by the MMA. Weights are its M side.
An fp8 input has one scale per row. The activated product of gate and up is rounded to fp8 by a launch of its own, with
one scale per pair, so that the down projection scales its sums once, after the loop. Each pair has its own column in
the MMA and K is accumulated in one order, so a pair's result does not depend on the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.backends.cuda.kernels.expert_tiles import ExpertTiles
from quicksilver.backends.cuda.kernels.gemma_rows import Rows
from quicksilver.backends.cuda.kernels.launch import pdl_launch, pdl_options, pdl_wait
from quicksilver.backends.cuda.kernels.linears import Weight
from quicksilver.backends.cuda.kernels.row_kernels import quantise_rows

# Heights of tiles by the pairs that an expert has on average.
_HEIGHTS = ((4, 16), (16, 32), (48, 64))
_TALLEST = 128


@dataclass(frozen=True, slots=True)
class GemmaTiling:
    """How a launch reads weights."""

    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


def tile_height(num_rows: int, top_k: int, num_experts: int) -> int:
    """Tall enough that most experts have one tile, so that their weights are read once."""
    mean = num_rows * top_k / num_experts
    return next((height for most, height in _HEIGHTS if mean <= most), _TALLEST)


def pick_tilings(height: int, is_fp8: bool) -> tuple[GemmaTiling, GemmaTiling]:
    """Of gate and up, and of down."""
    num_warps, num_stages = (8, 3) if height > 64 else (4, 4)
    return (
        GemmaTiling(64, 128 if is_fp8 else 64, num_warps, num_stages),
        GemmaTiling(128, 64, num_warps, num_stages),
    )


@triton.jit
def _pairs_of(records, tile, pairs, HEIGHT: tl.constexpr):
    """-> the pairs of a tile in the list of its expert, and which of them exist."""
    place = tl.load(records + 4 * tile + 1) + tl.arange(0, HEIGHT)
    is_pair = place < tl.load(records + 4 * tile + 2)
    return tl.load(pairs + place, mask=is_pair, other=0), is_pair


@triton.jit
def _gate_up_kernel(
    x, x_steps, w, w_scale, hidden, records, num_tiles, pairs, capacity, D, F,
    TOP_K: tl.constexpr, HEIGHT: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
    FP8: tl.constexpr, GELU: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(PDL)
    tile = tl.program_id(1)
    expert = tl.load(records + 4 * tile)
    if tile < tl.load(num_tiles):
        column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        n = tl.minimum(column, F - 1)  # columns behind the last one are not stored
        pair, is_pair = _pairs_of(records, tile, pairs + expert.to(tl.int64) * capacity, HEIGHT)
        k, row = tl.arange(0, BLOCK_K), pair // TOP_K
        from_gate = w + expert.to(tl.int64) * (2 * F * D)
        from_up = from_gate + F * D
        # 32-bit offsets take half the registers of pointers.
        at_w, at_x = n[:, None] * D + k[None, :], row[:, None] * D + k[None, :]
        if FP8:  # before the loop, which does not wait for them
            step = tl.load(x_steps + row, mask=is_pair, other=0.0)[None, :]
            scales = w_scale + expert * (2 * F) + n
            gate_scale, up_scale = tl.load(scales)[:, None], tl.load(scales + F)[:, None]
        gate = tl.zeros((BLOCK_N, HEIGHT), tl.float32)
        up = tl.zeros((BLOCK_N, HEIGHT), tl.float32)
        for start in range(0, D, BLOCK_K):
            if EVEN:
                w_gate, w_up = tl.load(from_gate + start + at_w), tl.load(from_up + start + at_w)
                given = tl.load(x + start + at_x, mask=is_pair[:, None], other=0.0)
            else:
                is_in = (start + k < D)[None, :]
                w_gate = tl.load(from_gate + start + at_w, mask=is_in, other=0.0)
                w_up = tl.load(from_up + start + at_w, mask=is_in, other=0.0)
                given = tl.load(x + start + at_x, mask=is_pair[:, None] & is_in, other=0.0)
            if FP8:  # accumulated in fp32: fp8 MMA accumulators have fewer bits
                gate += tl.dot(w_gate, tl.trans(given))
                up += tl.dot(w_up, tl.trans(given))
            else:
                gate = tl.dot(w_gate, tl.trans(given), gate, input_precision="ieee")
                up = tl.dot(w_up, tl.trans(given), up, input_precision="ieee")
        pdl_launch(PDL)
        if FP8:
            gate, up = gate * step * gate_scale, up * step * up_scale
        if GELU:
            y = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)) * up
        else:
            y = gate * tl.sigmoid(gate) * up
        is_column = column < F
        target = hidden + pair[None, :].to(tl.int64) * F + column[:, None]
        tl.store(target, y.to(hidden.dtype.element_ty), mask=is_pair[None, :] & is_column[:, None])


@triton.jit
def _down_kernel(
    hidden, hidden_steps, w, w_scale, parts, records, num_tiles, pairs, capacity, D, F,
    HEIGHT: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr, FP8: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(PDL)
    tile = tl.program_id(1)
    expert = tl.load(records + 4 * tile)
    if tile < tl.load(num_tiles):
        column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        n, k = tl.minimum(column, D - 1), tl.arange(0, BLOCK_K)
        pair, is_pair = _pairs_of(records, tile, pairs + expert.to(tl.int64) * capacity, HEIGHT)
        from_w = w + expert.to(tl.int64) * (D * F)
        at_w, at_hidden = n[:, None] * F + k[None, :], pair[:, None] * F + k[None, :]
        total = tl.zeros((BLOCK_N, HEIGHT), tl.float32)
        if FP8:
            column_scale = tl.load(w_scale + expert * D + n)[:, None]
            step = tl.load(hidden_steps + pair, mask=is_pair, other=0.0)[None, :]
        for start in range(0, F, BLOCK_K):
            if EVEN:
                weights = tl.load(from_w + start + at_w)
                given = tl.load(hidden + start + at_hidden, mask=is_pair[:, None], other=0.0)
            else:
                is_in = (start + k < F)[None, :]
                weights = tl.load(from_w + start + at_w, mask=is_in, other=0.0)
                given = tl.load(hidden + start + at_hidden, mask=is_pair[:, None] & is_in, other=0.0)
            if FP8:
                total += tl.dot(weights, tl.trans(given))
            else:
                total = tl.dot(weights, tl.trans(given), total, input_precision="ieee")
        pdl_launch(PDL)
        if FP8:
            total = total * step * column_scale
        target = parts + pair[None, :].to(tl.int64) * D + column[:, None]
        tl.store(target, total.to(parts.dtype.element_ty), mask=is_pair[None, :] & (column < D)[:, None])


def expert_parts(
    x: Rows, top_k: int, gate_up: Weight, down: Weight, tiles: ExpertTiles, activation: str, dtype: torch.dtype,
    tilings: tuple[GemmaTiling, GemmaTiling] | None = None,
) -> Tensor:  # fmt: skip
    """The output of every pair, (pairs, dim) in `dtype`. `x` (rows, dim) is in the format of the weights, `gate_up`
    (experts, 2 * ffn, dim) and `down` (experts, dim, ffn). `tiles` hold the pairs of each expert."""
    num_pairs, (_, dim, ffn) = len(x.values) * top_k, down.w.shape
    is_fp8 = down.scale is not None
    first, second = tilings or pick_tilings(tiles.height, is_fp8)
    hidden = torch.empty(num_pairs, ffn, dtype=dtype, device=down.w.device)
    parts = torch.empty(num_pairs, dim, dtype=dtype, device=down.w.device)
    tables = (tiles.records, tiles.num_tiles, tiles.pairs, tiles.pairs.shape[1], dim, ffn)
    _gate_up_kernel[(triton.cdiv(ffn, first.block_n), tiles.max_tiles)](
        x.values, x.steps_or_values, gate_up.w, hidden if gate_up.scale is None else gate_up.scale, hidden, *tables,
        TOP_K=top_k, HEIGHT=tiles.height, BLOCK_N=first.block_n, BLOCK_K=first.block_k,
        EVEN=dim % first.block_k == 0, FP8=is_fp8, GELU=activation == "gelu_tanh",
        num_warps=first.num_warps, num_stages=first.num_stages, **pdl_options(),
    )  # fmt: skip
    given = Rows(*quantise_rows(hidden)) if is_fp8 else Rows(hidden)
    _down_kernel[(triton.cdiv(dim, second.block_n), tiles.max_tiles)](
        given.values, given.steps_or_values, down.w, hidden if down.scale is None else down.scale, parts, *tables,
        HEIGHT=tiles.height, BLOCK_N=second.block_n, BLOCK_K=second.block_k, EVEN=ffn % second.block_k == 0,
        FP8=is_fp8, num_warps=second.num_warps, num_stages=second.num_stages, **pdl_options(),
    )  # fmt: skip
    return parts
