"""The router of DiffusionGemma: scores in fp32 accuracy from a 16-bit matmul, and the best experts of each row,
with tiles of their pairs.

The router's matrix times the scale of each column is a matrix in fp32. It is kept as a sum of 16-bit matrices, whose
products are added in fp32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.backends.cuda.kernels.expert_tiles import ExpertTiles, add_pairs, cut_lists, is_last_program
from quicksilver.backends.cuda.kernels.launch import pdl_options, pdl_wait_and_launch

# 16-bit parts of an fp32 number: 3 x 8 bits of mantissa.
_PARTS = 3
# Rows and columns of a program of the matmul: few, so that a canvas occupies the GPU.
_ROWS, _DEPTH = 32, 256


@triton.jit
def _scores_kernel(
    x, router, scores, num_rows, D,
    NUM_EXPERTS: tl.constexpr, EXPERTS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """scores (splits, rows, experts) fp32: the products of DEPTH columns."""
    pdl_wait_and_launch(PDL)
    r, e = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, EXPERTS)
    split, k = tl.program_id(1), tl.arange(0, BLOCK_K)
    is_row, is_expert = (r < num_rows)[:, None], (e < NUM_EXPERTS)[:, None]
    acc = tl.zeros((ROWS, EXPERTS), tl.float32)
    for start in range(split * DEPTH, split * DEPTH + DEPTH, BLOCK_K):
        is_in = (start + k < D)[None, :]
        rows = tl.load(x + r.to(tl.int64)[:, None] * D + start + k[None, :], mask=is_row & is_in, other=0.0)
        for part in tl.static_range(PARTS):
            at = router + (part * NUM_EXPERTS + e)[:, None] * D + start + k[None, :]
            columns = tl.load(at, mask=is_expert & is_in, other=0.0)
            acc = tl.dot(rows, tl.trans(columns), acc, input_precision="ieee")
    at = scores + (split.to(tl.int64) * num_rows + r)[:, None] * NUM_EXPERTS + e[None, :]
    tl.store(at, acc, mask=is_row & (e < NUM_EXPERTS)[None, :])


@triton.jit
def _choose_kernel(
    scores, inverse_rms, expert_scale, weights, counts, pairs, arrived, records, num_tiles, num_rows, capacity,
    NUM_EXPERTS: tl.constexpr, EXPERTS: tl.constexpr, SPLITS: tl.constexpr, TOP_K: tl.constexpr, PLACES: tl.constexpr,
    HEIGHT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait_and_launch(PDL)
    row = tl.program_id(0).to(tl.int64)
    expert, place = tl.arange(0, EXPERTS), tl.arange(0, PLACES)
    is_expert = expert < NUM_EXPERTS
    total = tl.zeros((EXPERTS,), tl.float32)
    for split in tl.static_range(SPLITS):
        at = (split * num_rows + row) * NUM_EXPERTS + expert
        total += tl.load(scores + at, mask=is_expert, other=0.0)
    total = total * tl.load(inverse_rms + row)
    # NaN must not choose an expert that does not exist.
    total = tl.where(is_expert & (total == total), total, -1e30)
    p = tl.where(is_expert, tl.exp(total - tl.max(total, 0)), -1.0)
    best, gates = tl.zeros((PLACES,), tl.int32), tl.zeros((PLACES,), tl.float32)
    for i in tl.static_range(TOP_K):
        index = tl.argmax(p, 0)
        gate = tl.max(p, 0)
        best, gates = tl.where(place == i, index, best), tl.where(place == i, gate, gates)
        p = tl.where(expert == index, -2.0, p)
    is_place = place < TOP_K
    gates = gates / tl.sum(gates, 0) * tl.load(expert_scale + best, mask=is_place, other=0.0)
    pair = row.to(tl.int32) * TOP_K + place
    tl.store(weights + pair, gates, mask=is_place)
    add_pairs(counts, pairs, capacity, best, pair, is_place)
    if is_last_program(arrived, tl.num_programs(0)):
        cut_lists(counts, records, num_tiles, capacity, NUM_EXPERTS, EXPERTS, HEIGHT)


def split_router(router: Tensor, scale: Tensor) -> Tensor:
    """(parts * experts, dim) in the router's dtype: the sum of the parts is router * scale * dim ** -0.5."""
    whole = router.float() * scale.float() * router.shape[1] ** -0.5
    if router.dtype is torch.float32:
        return whole
    parts = []
    for _ in range(_PARTS):
        parts.append(whole.to(router.dtype))
        whole = whole - parts[-1].float()
    return torch.cat(parts)


def choose_experts(
    x: Tensor, inverse_rms: Tensor, router: Tensor, expert_scale: Tensor, top_k: int, tiles: ExpertTiles
) -> Tensor:
    """x (rows, dim), the residual stream -> the weights (rows, top_k) of the best experts of each row, best first:
    softmax over the chosen ones times `expert_scale` (fp32). Equal scores go to the lower index. `tiles` receive the
    chosen pairs."""
    (num_rows, dim), num_experts = x.shape, len(expert_scale)
    padded, splits = max(triton.next_power_of_2(num_experts), 16), triton.cdiv(dim, _DEPTH)
    scores = torch.empty(splits, num_rows, num_experts, device=x.device)
    _scores_kernel[(triton.cdiv(num_rows, _ROWS), splits)](
        x, router, scores, num_rows, dim, NUM_EXPERTS=num_experts, EXPERTS=padded, PARTS=len(router) // num_experts,
        ROWS=_ROWS, DEPTH=_DEPTH, BLOCK_K=64, num_warps=4, num_stages=3, **pdl_options(),
    )  # fmt: skip
    weights = torch.empty(num_rows, top_k, device=x.device)
    _choose_kernel[(num_rows,)](
        scores, inverse_rms, expert_scale, weights, tiles.counts, tiles.pairs, tiles.arrived, tiles.records,
        tiles.num_tiles, num_rows, tiles.pairs.shape[1], NUM_EXPERTS=num_experts, EXPERTS=padded, SPLITS=splits,
        TOP_K=top_k, PLACES=triton.next_power_of_2(top_k), HEIGHT=tiles.height, num_warps=1, **pdl_options(),
    )  # fmt: skip
    return weights
