"""The router of a mixture-of-experts layer in one launch: norm, scores, groups, top-k, weights, and tiles of pairs.

The same choice as `model/moe.py::route`: ties go to the lower index, and the scores are those of fp32 logits. A program
computes the logits of a block of rows for a block of experts. The last one of a block of rows chooses the experts of
these rows, and the last of all cuts the lists of pairs into tiles (`expert_tiles.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.backends.cuda.kernels.expert_tiles import ExpertTiles, add_pairs, cut_lists, is_last_program
from quicksilver.backends.cuda.kernels.launch import pdl_options, pdl_wait_and_launch, prefetch_rows
from quicksilver.backends.cuda.kernels.linears import Norm
from quicksilver.backends.cuda.kernels.row_kernels import to_input_format
from quicksilver.model.experts import MoeConfig

# Rows of a program, and those whose experts are chosen at a time.
_BLOCK_ROWS = 16
_BLOCK_K = 128
# Columns of the rows that are squared at a time.
_BLOCK_SQUARES = 512
# Few programs read the router's matrix, so each has many loads in flight.
_STAGES = 5


@dataclass(frozen=True, slots=True)
class Router:
    """The matrix (experts, dim), what is added to the scores for the choice (experts,) fp32, and the options."""

    weight: Tensor
    bias: Tensor | None
    moe: MoeConfig


@dataclass(frozen=True, slots=True)
class UsedRows:
    """Which rows a forward uses: those that attend to something (`attention.RowTables`). Others choose no expert."""

    prefix_end: Tensor
    span_start: Tensor
    span_end: Tensor


@dataclass(frozen=True, slots=True)
class RouterOutputs:
    """Buffers of the router. A place is one of the chosen experts; the shared expert, if any, is the last place."""

    normed: Tensor  # (rows, dim): the rows after the norm, in the input format of the experts
    logits: Tensor  # (rows, experts) fp32
    chosen: Tensor  # (rows, places) int32; -1 in rows that are not used
    weights: Tensor  # (rows, places) fp32
    tiles: ExpertTiles


@triton.jit
def _inv_rms(
    x, squares, r, at_row, num_rows, D, eps,
    ROWS: tl.constexpr, TILES: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """1 / RMS of each row, from the sums of squares of TILES tiles of columns, or from the rows themselves."""
    if TILES > 0:
        tile = tl.arange(0, SLOTS)
        at = squares + tile[:, None] * num_rows + r[None, :]
        total = tl.sum(tl.load(at, mask=(tile < TILES)[:, None] & (r < num_rows)[None, :], other=0.0), 0)
    else:
        total = tl.zeros((ROWS,), tl.float32)
        for block in tl.static_range(BLOCKS):  # unrolled, so that all loads are in flight at once
            k = block * BLOCK + tl.arange(0, BLOCK)
            wide = tl.load(x + at_row[:, None] + k[None, :], mask=(k < D)[None, :], other=0.0).to(tl.float32)
            total += tl.sum(wide * wide, 1)
    return tl.rsqrt(total / D + eps)


@triton.jit
def _normed(x, gain, inv_rms, at_row, at_k, is_in):
    wide = tl.load(x + at_row[:, None] + at_k[None, :], mask=is_in[None, :], other=0.0).to(tl.float32)
    return wide * inv_rms[:, None] * tl.load(gain + at_k, mask=is_in, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _keep_best_groups(
    ranked, ROWS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr, TOP_GROUPS: tl.constexpr
):  # fmt: skip
    """Scores with -inf outside the best groups. The score of a group is the sum of its two best experts."""
    grouped = tl.reshape(ranked, (ROWS, GROUPS, SIZE))
    first = tl.argmax(grouped, 2, tie_break_left=True)
    is_first = tl.arange(0, SIZE)[None, None, :] == first[:, :, None]
    total = tl.max(grouped, 2) + tl.max(tl.where(is_first, float("-inf"), grouped), 2)
    g = tl.arange(0, GROUPS)
    other, own = total[:, None, :], total[:, :, None]
    is_before = (other > own) | ((other == own) & (g[None, None, :] < g[None, :, None]))
    is_kept = tl.sum(is_before.to(tl.int32), 2) < TOP_GROUPS
    return tl.reshape(tl.where(is_kept[:, :, None], grouped, float("-inf")), (ROWS, GROUPS * SIZE))


@triton.jit
def _scores(logits, top, total, SIGMOID: tl.constexpr):
    return 1.0 / (1.0 + tl.exp(-logits)) if SIGMOID else tl.exp(logits - top[:, None]) / total[:, None]


@triton.jit
def _choose(
    logits, bias, chosen, weights, counts, pairs, prefix_end, span_start, span_end, r, num_rows, capacity, factor,
    NUM_EXPERTS: tl.constexpr, TOP_K: tl.constexpr, NUM_GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr,
    GROUPS: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, PLACES: tl.constexpr, SLOTS: tl.constexpr,
    SIGMOID: tl.constexpr, BIAS: tl.constexpr, NORMALISED: tl.constexpr, SKIPS: tl.constexpr,
):  # fmt: skip
    """Choose the experts of rows r and append their pairs to the lists. Groups are padded to SIZE experts."""
    OWN: tl.constexpr = NUM_EXPERTS // NUM_GROUPS
    c = tl.arange(0, GROUPS * SIZE)
    expert = c // SIZE * OWN + c % SIZE
    is_expert = (c // SIZE < NUM_GROUPS) & (c % SIZE < OWN)
    is_row = r < num_rows
    at = logits + r.to(tl.int64)[:, None] * NUM_EXPERTS + expert[None, :]
    logit = tl.load(at, mask=is_row[:, None] & is_expert[None, :], other=float("-inf"), cache_modifier=".cg")
    top, total = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32) + 1.0
    if not SIGMOID:
        top = tl.max(logit, 1)
        top = tl.where(top == float("-inf"), 0.0, top)
        total = tl.maximum(tl.sum(tl.exp(logit - top[:, None]), 1), 1e-30)  # a row of padding has no score
    ranked = _scores(logit, top, total, SIGMOID)
    if BIAS:
        ranked += tl.load(bias + expert, mask=is_expert, other=0.0)[None, :]
    ranked = tl.where(is_expert[None, :], ranked, float("-inf"))
    if NUM_GROUPS > 1:
        ranked = _keep_best_groups(ranked, ROWS, GROUPS, SIZE, TOP_GROUPS)
    place = tl.arange(0, SLOTS)
    ids = tl.full((ROWS, SLOTS), NUM_EXPERTS, tl.int32)  # the shared expert is after the chosen ones
    for index in tl.static_range(TOP_K):
        best = tl.argmax(ranked, 1, tie_break_left=True)
        is_best = c[None, :] == best[:, None]
        # Of NaN scores any column may be the best.
        found = tl.minimum(best // SIZE * OWN + best % SIZE, NUM_EXPERTS - 1)
        ids = tl.where((place == index)[None, :], found[:, None], ids)
        ranked = tl.where(is_best, float("-inf"), ranked)
    # The scores of the chosen experts, computed again: cheaper than finding each one in its row.
    is_chosen = (place < TOP_K)[None, :] & is_row[:, None]
    own = tl.load(logits + r.to(tl.int64)[:, None] * NUM_EXPERTS + ids, mask=is_chosen, other=0.0, cache_modifier=".cg")
    shares = tl.where(is_chosen, _scores(own, top, total, SIGMOID), 0.0)
    if NORMALISED:
        shares = shares / (tl.sum(shares, 1)[:, None] + 1e-20)
    shares = tl.where((place < TOP_K)[None, :], shares * factor, 1.0)
    is_used = is_row
    if SKIPS:
        span = tl.load(span_end + r, mask=is_row, other=0) - tl.load(span_start + r, mask=is_row, other=0)
        is_used = is_row & ((tl.load(prefix_end + r, mask=is_row, other=0) > 0) | (span > 0))
    is_pair = (place < PLACES)[None, :] & is_row[:, None]
    pair = r[:, None] * PLACES + place[None, :]
    tl.store(chosen + pair, tl.where(is_used[:, None], ids, -1), mask=is_pair)
    tl.store(weights + pair, shares, mask=is_pair)
    add_pairs(counts, pairs, capacity, ids, pair, is_pair & is_used[:, None])


@triton.jit(do_not_specialize=["capacity", "num_rows"])
def _route_kernel(
    x, squares, gain, router, bias, normed, logits, chosen, weights, counts, pairs, arrived, records, num_tiles,
    prefix_end, span_start, span_end, eps, factor, num_rows, D, capacity,
    NUM_EXPERTS: tl.constexpr, TOP_K: tl.constexpr, NUM_GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr,
    GROUPS: tl.constexpr, SIZE: tl.constexpr, PLACES: tl.constexpr, SLOTS: tl.constexpr, SIGMOID: tl.constexpr,
    BIAS: tl.constexpr, NORMALISED: tl.constexpr, SKIPS: tl.constexpr, INPUT_SCALE: tl.constexpr,
    LISTS: tl.constexpr, HEIGHT: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr, TILES: tl.constexpr, TILE_SLOTS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, LINES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    r, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_K)
    e = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    own_experts = tl.minimum(e, NUM_EXPERTS - 1)
    at_row, at_expert = tl.minimum(r, num_rows - 1).to(tl.int64) * D, router + own_experts[:, None] * D
    prefetch_rows(router, own_experts, D, 0, LINES, PDL)
    pdl_wait_and_launch(PDL)
    inv_rms = _inv_rms(x, squares, r, at_row, num_rows, D, eps, ROWS, TILES, TILE_SLOTS, BLOCK, BLOCKS)
    acc = tl.zeros((ROWS, BLOCK_E), tl.float32)
    for start in range(0, D, BLOCK_K):
        is_in = start + k < D
        rows = _normed(x, gain, inv_rms, at_row, start + k, is_in).to(x.dtype.element_ty)
        w = tl.load(at_expert + (start + k)[None, :], mask=is_in[None, :], other=0.0).to(rows.dtype)
        acc = tl.dot(rows, tl.trans(w), acc, input_precision="ieee")
    is_logit = (r < num_rows)[:, None] & (e < NUM_EXPERTS)[None, :]
    tl.store(logits + r.to(tl.int64)[:, None] * NUM_EXPERTS + e[None, :], acc, mask=is_logit)
    # Each program stores its share of the columns of the normed rows.
    for start in range(tl.program_id(1) * BLOCK_K, D, tl.num_programs(1) * BLOCK_K):
        is_in = start + k < D
        # Rounded to the model's dtype first, as the output of the norm is.
        rows = _normed(x, gain, inv_rms, at_row, start + k, is_in).to(x.dtype.element_ty).to(tl.float32)
        y = to_input_format(rows, normed.dtype.element_ty, INPUT_SCALE)
        tl.store(normed + at_row[:, None] + (start + k)[None, :], y, mask=(r < num_rows)[:, None] & is_in[None, :])
    if is_last_program(arrived + 1 + tl.program_id(0), tl.num_programs(1)):
        _choose(
            logits, bias, chosen, weights, counts, pairs, prefix_end, span_start, span_end, r, num_rows, capacity,
            factor, NUM_EXPERTS, TOP_K, NUM_GROUPS, TOP_GROUPS, GROUPS, SIZE, ROWS, PLACES, SLOTS, SIGMOID, BIAS,
            NORMALISED, SKIPS,
        )  # fmt: skip
        if is_last_program(arrived, tl.num_programs(0)):
            cut_lists(counts, records, num_tiles, capacity, NUM_EXPERTS + PLACES - TOP_K, LISTS, HEIGHT)


def allocate_router(
    num_rows: int, dim: int, moe: MoeConfig, height: int, dtype: torch.dtype, device: torch.device | str
) -> RouterOutputs:
    """`dtype` is that of the experts' inputs."""
    has_shared = moe.shared_ffn_dim > 0
    places, experts = moe.top_k + has_shared, moe.num_experts + has_shared
    return RouterOutputs(
        torch.zeros(num_rows, dim, dtype=dtype, device=device),
        torch.zeros(num_rows, moe.num_experts, device=device),
        torch.zeros(num_rows, places, dtype=torch.int32, device=device),
        torch.zeros(num_rows, places, device=device),
        ExpertTiles.allocate(num_rows, experts, num_rows * places, height, device),
    )


def route_rows(
    x: Tensor, norm: Norm, router: Router, out: RouterOutputs, used: UsedRows | None = None,
    *, squares: Tensor | None = None, input_scale: float = 1.0,
) -> RouterOutputs:  # fmt: skip
    """Fill `out` from the rows of x before the norm. `squares`: their sums of squares by tile of columns (tiles, rows),
    if they are known."""
    (num_rows, dim), moe, places = x.shape, router.moe, out.chosen.shape[1]
    block_e = 16 if num_rows <= 64 else 64
    tables = (used.prefix_end, used.span_start, used.span_end) if used else (out.chosen,) * 3
    tiles, num_squares = out.tiles, 0 if squares is None else len(squares)
    _route_kernel[(triton.cdiv(num_rows, _BLOCK_ROWS), triton.cdiv(moe.num_experts, block_e))](
        x, out.logits if squares is None else squares, norm.gain, router.weight,
        x if router.bias is None else router.bias, out.normed, out.logits, out.chosen,
        out.weights, tiles.counts, tiles.pairs, tiles.arrived, tiles.records, tiles.num_tiles, *tables, norm.eps,
        moe.scale, num_rows, dim, tiles.pairs.shape[1],
        NUM_EXPERTS=moe.num_experts, TOP_K=moe.top_k, NUM_GROUPS=moe.num_groups, TOP_GROUPS=moe.top_groups,
        GROUPS=triton.next_power_of_2(moe.num_groups), SIZE=triton.next_power_of_2(moe.num_experts // moe.num_groups),
        PLACES=places, SLOTS=triton.next_power_of_2(places), SIGMOID=moe.router == "sigmoid",
        BIAS=router.bias is not None, NORMALISED=moe.is_normalised, SKIPS=used is not None, INPUT_SCALE=input_scale,
        LISTS=triton.next_power_of_2(len(tiles.counts)), HEIGHT=tiles.height,
        ROWS=_BLOCK_ROWS, BLOCK_E=block_e, BLOCK_K=_BLOCK_K, TILES=num_squares,
        TILE_SLOTS=triton.next_power_of_2(max(num_squares, 1)), BLOCK=_BLOCK_SQUARES,
        BLOCKS=triton.cdiv(dim, _BLOCK_SQUARES), LINES=min(triton.next_power_of_2(triton.cdiv(dim, 64)), 32),
        num_warps=4, num_stages=_STAGES, **pdl_options(),
    )  # fmt: skip
    return out
