"""Routed experts of a mixture-of-experts layer in three launches, without a transfer to the host.

Pairs of a row and a chosen expert are sorted by expert and cut into tiles of one expert. The first kernel computes the
activated product of gate and up of each tile, the second the down projection, and the third adds the experts of each
row in the order of their scores. The products of a row are accumulated in one order, so a row's result does not depend
on the other rows of the batch as long as the tile height is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

# Rows of a tile. Few pairs per expert waste most of a high tile; many make a low one read its weights again.
LOW_TILE, HIGH_TILE = 16, 64
# Pairs per expert on average from which tiles are high.
HIGH_TILE_PAIRS = 16
BLOCK_N, BLOCK_K = 64, 64


@dataclass(frozen=True, slots=True)
class ExpertTiles:
    """Pairs in the order of their experts, and tiles of at most `height` pairs of one expert."""

    order: Tensor  # (pairs,) int64: pair (row * top_k + place) at each sorted position
    tile_end: Tensor  # (experts,) int64: tiles of this expert and the ones before it
    pair_end: Tensor  # (experts,) int64: pairs of this expert and the ones before it
    height: int

    @property
    def max_tiles(self) -> int:
        """An upper bound that depends on shapes only; programs of tiles that do not exist return at once."""
        num_pairs, num_experts = len(self.order), len(self.tile_end)
        return min(num_pairs, num_experts + num_pairs // self.height)


def make_tiles(chosen: Tensor, num_experts: int) -> ExpertTiles:
    """`chosen`: (rows, top_k) expert ids. Equal experts stay in the order of their pairs."""
    flat = chosen.reshape(-1)
    height = HIGH_TILE if len(flat) >= HIGH_TILE_PAIRS * num_experts else LOW_TILE
    counts = torch.zeros(num_experts, dtype=torch.int64, device=flat.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    num_tiles = (counts + height - 1) // height
    return ExpertTiles(flat.argsort(stable=True), num_tiles.cumsum(0), counts.cumsum(0), height)


@triton.jit
def _find_tile(tile, tile_end, pair_end, NUM_EXPERTS: tl.constexpr, EXPERTS: tl.constexpr, HEIGHT: tl.constexpr):
    """-> the expert of a tile, its first sorted position and the end of its expert's positions; an expert of
    NUM_EXPERTS if there is no such tile."""
    index = tl.arange(0, EXPERTS)
    is_expert = index < NUM_EXPERTS
    ends = tl.load(tile_end + index, mask=is_expert, other=2147483647)
    expert = tl.sum((ends <= tile).to(tl.int32), 0)
    is_before = index < expert
    tiles_before = tl.max(tl.where(is_before & is_expert, ends, 0), 0)
    pairs = tl.load(pair_end + index, mask=is_expert, other=0)
    first = tl.max(tl.where(is_before & is_expert, pairs, 0), 0) + (tile - tiles_before) * HEIGHT
    end = tl.max(tl.where(index <= expert, pairs, 0), 0)
    return expert, first, end


@triton.jit
def _gate_up_kernel(
    x, gate_up, hidden, order, tile_end, pair_end, top_k, D, F,
    NUM_EXPERTS: tl.constexpr, EXPERTS: tl.constexpr, HEIGHT: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    expert, first, end = _find_tile(tl.program_id(0), tile_end, pair_end, NUM_EXPERTS, EXPERTS, HEIGHT)
    if expert < NUM_EXPERTS:
        place = first + tl.arange(0, HEIGHT)
        is_pair = place < end
        row = tl.load(order + place, mask=is_pair, other=0) // top_k
        n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        is_column = n < F
        w = gate_up + expert.to(tl.int64) * 2 * F * D
        gate = tl.zeros((HEIGHT, BLOCK_N), tl.float32)
        up = tl.zeros((HEIGHT, BLOCK_N), tl.float32)
        for start in range(0, D, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            is_deep = k < D
            inputs = tl.load(x + row[:, None] * D + k[None, :], mask=is_pair[:, None] & is_deep[None, :], other=0.0)
            at = n[None, :].to(tl.int64) * D + k[:, None]
            is_weight = is_deep[:, None] & is_column[None, :]
            gate += tl.dot(inputs, tl.load(w + at, mask=is_weight, other=0.0), input_precision="ieee")
            up += tl.dot(inputs, tl.load(w + F * D + at, mask=is_weight, other=0.0), input_precision="ieee")
        if GELU:
            inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
            active = gate * tl.sigmoid(2.0 * inner)
        else:
            active = gate * tl.sigmoid(gate)
        target = hidden + place[:, None].to(tl.int64) * F + n[None, :]
        tl.store(target, (active * up).to(hidden.dtype.element_ty), mask=is_pair[:, None] & is_column[None, :])


@triton.jit
def _down_kernel(
    hidden, down, parts, order, tile_end, pair_end, D, F,
    NUM_EXPERTS: tl.constexpr, EXPERTS: tl.constexpr, HEIGHT: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    expert, first, end = _find_tile(tl.program_id(0), tile_end, pair_end, NUM_EXPERTS, EXPERTS, HEIGHT)
    if expert < NUM_EXPERTS:
        place = first + tl.arange(0, HEIGHT)
        is_pair = place < end
        pair = tl.load(order + place, mask=is_pair, other=0)
        n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        is_column = n < D
        w = down + expert.to(tl.int64) * D * F
        total = tl.zeros((HEIGHT, BLOCK_N), tl.float32)
        for start in range(0, F, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            is_deep = k < F
            at = place[:, None].to(tl.int64) * F + k[None, :]
            inputs = tl.load(hidden + at, mask=is_pair[:, None] & is_deep[None, :], other=0.0)
            weights = tl.load(
                w + n[None, :].to(tl.int64) * F + k[:, None], mask=is_deep[:, None] & is_column[None, :], other=0.0
            )
            total += tl.dot(inputs, weights, input_precision="ieee")
        target = parts + pair[:, None] * D + n[None, :]
        tl.store(target, total, mask=is_pair[:, None] & is_column[None, :])


@triton.jit
def _add_kernel(parts, weights, out, D, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < D
    total = tl.zeros((BLOCK,), tl.float32)
    for place in range(TOP_K):
        pair = row * TOP_K + place
        total += tl.load(parts + pair * D + column, mask=is_column, other=0.0) * tl.load(weights + pair)
    tl.store(out + row * D + column, total, mask=is_column)


def run_experts(
    x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, activation: str = "silu"
) -> Tensor:
    """The weighted sum of the chosen experts of each row, in fp32.

    `x` (rows, dim), `chosen` and `weights` (rows, top_k), `gate_up` (experts, 2 * ffn, dim), `down` (experts, dim,
    ffn).
    """
    (num_rows, dim), (num_experts, _, ffn_dim), top_k = x.shape, down.shape, chosen.shape[1]
    tiles = make_tiles(chosen, num_experts)
    hidden = torch.empty(len(tiles.order), ffn_dim, dtype=x.dtype, device=x.device)
    parts = torch.empty(len(tiles.order), dim, dtype=torch.float32, device=x.device)
    out = torch.empty(num_rows, dim, dtype=torch.float32, device=x.device)
    shared = {
        "NUM_EXPERTS": num_experts, "EXPERTS": triton.next_power_of_2(num_experts), "HEIGHT": tiles.height,
        "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K,
    }  # fmt: skip
    tables = (tiles.order, tiles.tile_end, tiles.pair_end)
    _gate_up_kernel[(tiles.max_tiles, triton.cdiv(ffn_dim, BLOCK_N))](
        x, gate_up, hidden, *tables, top_k, dim, ffn_dim, **shared, GELU=activation == "gelu_tanh", num_warps=4,
    )  # fmt: skip
    _down_kernel[(tiles.max_tiles, triton.cdiv(dim, BLOCK_N))](
        hidden, down, parts, *tables, dim, ffn_dim, **shared, num_warps=4
    )
    block = min(triton.next_power_of_2(dim), 1024)
    _add_kernel[(num_rows, triton.cdiv(dim, block))](parts, weights.contiguous(), out, dim, TOP_K=top_k, BLOCK=block)
    return out
