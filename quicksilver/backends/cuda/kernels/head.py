"""The output head with a fused sampler: each vocabulary tile is reduced to its best token, log-sum and entropy, so
logits are never stored.

Rows may have a logit bias. A program whose tile contains no biased token reads one number only.

Gumbel noise is the counter-based noise of `diffusion/sample.py`, computed in the kernel, so greedy and sampled rows of
many requests share one launch. Ties go to the lowest token id, as in argmax.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.backends.cuda.kernels.launch import (
    pdl_launch,
    pdl_options,
    pdl_wait,
    pdl_wait_and_launch,
    prefetch_rows,
)
from quicksilver.backends.cuda.kernels.linears import Norm, Weight
from quicksilver.backends.cuda.kernels.row_kernels import norm_rows

# Tokens of a vocabulary tile.
BLOCK_V = 64
# The same where many rows propose and no runners-up are needed: fewer tiles read the rows again.
WIDE_BLOCK_V = 128
# Rows of a tile at most.
_BLOCK_M = 64
# Runners-up per row: the second to the seventh best token.
NUM_NEXT = 6


@dataclass(frozen=True, slots=True)
class Draws:
    """Sampling parameters, one entry per row. Temperature 0 is greedy; `positions` are those of the proposed tokens."""

    temperature: Tensor  # fp32
    seeds: Tensor  # int64
    positions: Tensor  # int32
    steps: Tensor  # int32


@dataclass(frozen=True, slots=True)
class Bias:
    """Logit bias of each row; minus infinity bans a token."""

    ids: Tensor  # (entries, rows) int32, -1 for none; entries is a power of two, tokens of a row are distinct
    values: Tensor  # (entries, rows) fp32
    tiles: Tensor  # (vocabulary tiles,) int32: entries to read, i.e. 1 + the last entry of any row in the tile


@dataclass(frozen=True, slots=True)
class HeadWorkspace:
    """Buffers of the head: six values per (tile, row), three more for runners-up, then four per row (token, confidence,
    entropy, is_finite)."""

    tiles: Tensor  # (9, tiles, rows) fp32; planes 1 and 7 hold token ids as bits
    normed: Tensor  # (rows, dim): the proposing rows after the final norm
    results: Tensor  # (4, rows) int32; confidence and entropy are fp32 bits
    steps: Tensor | None = None  # (rows,) fp32 scales, if `normed` is fp8
    # (2 NUM_NEXT, rows) int32, optional: the next best tokens, or -1, and their probabilities as fp32 bits. Only the
    # best two tokens of a tile are considered, so a few may be missed.
    runners_up: Tensor | None = None
    block_v: int = BLOCK_V  # tokens of a vocabulary tile

    @classmethod
    def allocate(cls, head: Tensor, num_rows: int, dtype: torch.dtype, block_v: int = BLOCK_V) -> HeadWorkspace:
        """For a head of (vocab, dim) and rows of `dtype`. With an fp8 head `dtype` is fp16, or fp8 if dim is a multiple
        of 128."""
        (vocab_size, dim), device = head.shape, head.device
        steps = torch.zeros(num_rows, device=device) if dtype.itemsize == 1 else None
        tiles = torch.zeros((9, triton.cdiv(vocab_size, block_v), num_rows), device=device)
        normed = torch.zeros((num_rows, dim), dtype=dtype, device=device)
        results = torch.zeros((4, num_rows), dtype=torch.int32, device=device)
        return cls(tiles, normed, results, steps, block_v=block_v)

    def with_results(self, results: Tensor, runners_up: Tensor | None = None) -> HeadWorkspace:
        """The same buffers with other results (4, rows)."""
        return replace(self, results=results, runners_up=runners_up)


@triton.jit
def _mix64(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _gumbel(seeds, positions, steps, columns):
    """(rows, columns) Gumbel noise, equal to `diffusion.sample.gumbel`, in wrapping unsigned 64-bit arithmetic."""
    key = _mix64(seeds.to(tl.uint64) + 0x9E3779B97F4A7C15)
    key = _mix64(key + positions.to(tl.int64).to(tl.uint64) * 0x9E3779B97F4A7C15)
    key = _mix64(key + steps.to(tl.int64).to(tl.uint64) * 0x9E3779B97F4A7C15)
    at = (columns + 1).to(tl.int64).to(tl.uint64) * 0x9E3779B97F4A7C15
    bits = _mix64(key[:, None] + at[None, :]) >> 41
    u = (bits.to(tl.int32).to(tl.float32) + 0.5) * 1.1920928955078125e-07
    return -tl.log(-tl.log(u))


@triton.jit
def _add_bias(logits, num_entries, ids, values, r, v, num_rows, ENTRIES: tl.constexpr):
    """Add the bias in fp32, as the sampler does; a ban replaces the logit. Several entries are loaded at once, because
    one by one they would take longer than the tile's matmul."""
    AT_ONCE: tl.constexpr = 8 if ENTRIES > 8 else ENTRIES
    for first in range(0, num_entries, AT_ONCE):
        for j in tl.static_range(AT_ONCE):
            at = (first + j) * num_rows + r
            value = tl.load(values + at)[:, None]
            moved = tl.where(value == float("-inf"), value, logits + value)
            logits = tl.where(tl.load(ids + at)[:, None] == v[None, :], moved, logits)
    return logits


@triton.jit
def _store_tile(tiles, logits, score, is_open, r, num_rows, BLOCK_V: tl.constexpr, NEXT: tl.constexpr):
    """Store the reduced values of a (tile, row)."""
    best = tl.argmax(score, 1)
    chosen = tl.arange(0, BLOCK_V)[None, :] == best[:, None]
    top = tl.max(logits, 1)
    safe = tl.where(top == float("-inf"), 0.0, top)
    p = tl.exp(logits - safe[:, None])
    at = tl.program_id(1) * num_rows + r
    plane = tl.num_programs(1) * num_rows
    token = (tl.program_id(1) * BLOCK_V + best).to(tl.int32)
    tl.store(tiles + at, tl.max(score, 1))
    tl.store(tiles + plane + at, token.to(tl.float32, bitcast=True))
    tl.store(tiles + 2 * plane + at, tl.sum(tl.where(chosen, tl.where(is_open, logits, 0.0), 0.0), 1))
    tl.store(tiles + 3 * plane + at, top)
    tl.store(tiles + 4 * plane + at, tl.sum(p, 1))
    tl.store(tiles + 5 * plane + at, tl.sum(tl.where(is_open, p * (logits - safe[:, None]), 0.0), 1))
    if NEXT:
        score = tl.where(chosen, float("-inf"), score)
        best = tl.argmax(score, 1)
        chosen = tl.arange(0, BLOCK_V)[None, :] == best[:, None]
        tl.store(tiles + 6 * plane + at, tl.max(score, 1))
        token = (tl.program_id(1) * BLOCK_V + best).to(tl.int32)
        tl.store(tiles + 7 * plane + at, token.to(tl.float32, bitcast=True))
        tl.store(tiles + 8 * plane + at, tl.sum(tl.where(chosen, tl.where(is_open, logits, 0.0), 0.0), 1))


@triton.jit
def _head_kernel(
    x, row_steps, w, scale, bias_ids, bias_values, bias_tiles, bitmask, temperature, seeds, positions, steps, tiles,
    K, V, num_rows, words,
    BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr, LINES: tl.constexpr,
    SAMPLE: tl.constexpr, BIAS: tl.constexpr, BITMASK: tl.constexpr, SCALE: tl.constexpr, FP8: tl.constexpr,
    NEXT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Row tiles vary fastest, so that a vocabulary tile is read from memory once for all of them."""
    r = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    v = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    k = tl.arange(0, BLOCK_K)
    # Rows after the end of the head are clamped to its last row and masked below, so that the loop needs no mask.
    at_v = tl.minimum(v, V - 1).to(tl.int64)
    prefetch_rows(w, at_v, K, 0, LINES, PDL)
    if BIAS:
        # Before the wait: no kernel writes the bias, and its copy completes before the first kernel starts.
        num_entries = tl.load(bias_tiles + tl.program_id(1))
    pdl_wait(PDL)
    acc = tl.zeros((BLOCK_V, BLOCK_M), tl.float32)
    for start in range(0, K, BLOCK_K):
        at_k = start + k
        if EVEN:
            x_tile = tl.load(x + r[:, None] * K + at_k[None, :])
            w_tile = tl.load(w + at_v[:, None] * K + at_k[None, :])
        else:
            x_tile = tl.load(x + r[:, None] * K + at_k[None, :], mask=(at_k < K)[None, :], other=0.0)
            w_tile = tl.load(w + at_v[:, None] * K + at_k[None, :], mask=(at_k < K)[None, :], other=0.0)
        if FP8:
            acc += tl.dot(w_tile, tl.trans(x_tile))  # accumulated in fp32: fp8 MMA accumulators have fewer bits
        else:
            acc = tl.dot(w_tile.to(x_tile.dtype), tl.trans(x_tile), acc, input_precision="ieee")
    pdl_launch(PDL)
    logits = tl.trans(acc)
    if FP8:
        logits = logits * tl.load(row_steps + r)[:, None]
    if SCALE:
        logits = logits * tl.load(scale + v, mask=v < V, other=0.0)[None, :]
    is_open = (v < V)[None, :] & (r < num_rows)[:, None]
    if BIAS:
        logits = _add_bias(logits, num_entries, bias_ids, bias_values, r, v, num_rows, BIAS)
    if BITMASK:
        word = tl.load(bitmask + r.to(tl.int64)[:, None] * words + (v // 32)[None, :], mask=is_open, other=0)
        is_open = is_open & (((word >> (v % 32)[None, :]) & 1) != 0)
    logits = tl.where(is_open, logits, float("-inf"))
    if BIAS:
        is_open = logits != float("-inf")  # excludes banned tokens
    score = logits
    if SAMPLE:
        t = tl.load(temperature + r)
        noise = _gumbel(tl.load(seeds + r), tl.load(positions + r), tl.load(steps + r), v)
        score = tl.where((t > 0)[:, None], logits / tl.maximum(t, 1e-5)[:, None] + noise, logits)
    _store_tile(tiles, logits, score, is_open, r, num_rows, BLOCK_V, NEXT)


@triton.jit
def _reduce_kernel(
    tiles, results, runners_up, num_tiles, num_rows, BLOCK: tl.constexpr, NEXT: tl.constexpr, PDL: tl.constexpr
):
    """One program per row: reduce the tiles to token, probability, entropy and is_finite, and to NEXT runners-up."""
    pdl_wait_and_launch(PDL)
    row = tl.program_id(0)
    t = tl.arange(0, BLOCK)
    is_tile = t < num_tiles
    plane = num_tiles * num_rows
    at = tiles + t * num_rows + row
    score = tl.load(at, mask=is_tile, other=float("-inf"))
    first = tl.argmax(score, 0)
    token = tl.load(tiles + plane + first * num_rows + row).to(tl.int32, bitcast=True)
    logit = tl.load(tiles + 2 * plane + first * num_rows + row)
    top = tl.load(at + 3 * plane, mask=is_tile, other=float("-inf"))
    peak = tl.max(top, 0)
    weight = tl.where(top == float("-inf"), 0.0, tl.exp(top - peak))
    total_of = tl.load(at + 4 * plane, mask=is_tile, other=0.0)
    total = tl.sum(weight * total_of, 0)
    offset = tl.where(top == float("-inf"), 0.0, top - peak)
    weighted = tl.sum(weight * (tl.load(at + 5 * plane, mask=is_tile, other=0.0) + total_of * offset), 0)
    log_total = peak + tl.log(total)
    # NaN fails both comparisons, infinity one of them.
    is_finite = (log_total > -3.0e38) & (log_total < 3.0e38)
    tl.store(results + row, token)
    tl.store(results + num_rows + row, tl.exp(logit - log_total).to(tl.int32, bitcast=True))
    tl.store(results + 2 * num_rows + row, (tl.log(total) - weighted / total).to(tl.int32, bitcast=True))
    tl.store(results + 3 * num_rows + row, is_finite.to(tl.int32))
    if NEXT:
        # Candidates: the best of every tile, then the second best of every tile.
        c = tl.arange(0, 2 * BLOCK)
        tile, first_plane = c % BLOCK, tl.where(c < BLOCK, 0, 6)
        score = tl.load(tiles + first_plane * plane + tile * num_rows + row, mask=tile < num_tiles, other=float("-inf"))
    for i in tl.static_range(NEXT):
        score = tl.where(c == first, float("-inf"), score)
        best, first = tl.max(score, 0, return_indices=True)
        is_valid = best > float("-inf")
        source = tiles + tl.where(first < BLOCK, 1, 7) * plane + first % BLOCK * num_rows + row
        token = tl.load(source).to(tl.int32, bitcast=True)
        probability = tl.exp(tl.load(source + plane) - log_total)
        tl.store(runners_up + 2 * i * num_rows + row, tl.where(is_valid, token, -1))
        tl.store(
            runners_up + (2 * i + 1) * num_rows + row, tl.where(is_valid, probability, 0.0).to(tl.int32, bitcast=True)
        )


@dataclass(frozen=True, slots=True)
class HeadRows:
    """The proposing rows and their sampling options."""

    index: Tensor  # (rows,) int32: hidden rows
    draws: Draws | None = None  # None is greedy
    bitmask: Tensor | None = None  # (rows, words) int32, one bit per allowed token
    bias: Bias | None = None


def propose_rows(hidden: Tensor, norm: Norm, weight: Weight, rows: HeadRows, workspace: HeadWorkspace) -> Tensor:
    """hidden (any, dim) before the final norm -> `workspace.results`. The number of rows is a power of two, at least
    16."""
    vocab_size, k = weight.w.shape
    num_rows = len(rows.index)
    block_m = min(num_rows, _BLOCK_M)
    draws, mask, bias = rows.draws, rows.bitmask, rows.bias
    drawn = (draws.temperature, draws.seeds, draws.positions, draws.steps) if draws else (rows.index,) * 4
    num_tiles = workspace.tiles.shape[1]
    norm_rows(hidden, norm.gain, norm.eps, workspace.normed, rows.index, workspace.steps)
    is_fp8 = workspace.steps is not None
    block_k = 128 if k % 128 == 0 and (block_m <= 32 or is_fp8) else 64
    _head_kernel[(triton.cdiv(num_rows, block_m), num_tiles)](
        workspace.normed, workspace.normed if workspace.steps is None else workspace.steps,
        weight.w, weight.scale if weight.scale is not None else rows.index,
        *((bias.ids, bias.values, bias.tiles) if bias else (rows.index,) * 3),
        mask if mask is not None else rows.index, *drawn, workspace.tiles, k, vocab_size, num_rows,
        mask.shape[1] if mask is not None else 0,
        BLOCK_M=block_m, BLOCK_V=workspace.block_v, BLOCK_K=block_k, EVEN=k % block_k == 0, LINES=4,
        SAMPLE=draws is not None, BIAS=len(bias.ids) if bias else 0, BITMASK=mask is not None,
        SCALE=weight.scale is not None, FP8=is_fp8, NEXT=workspace.runners_up is not None,
        num_warps=4, num_stages=4 if workspace.block_v > BLOCK_V else 6 // weight.w.element_size(), **pdl_options(),
    )  # fmt: skip
    _reduce_kernel[(num_rows,)](
        workspace.tiles,
        workspace.results,
        workspace.results if workspace.runners_up is None else workspace.runners_up,
        num_tiles,
        num_rows,
        BLOCK=triton.next_power_of_2(num_tiles),
        NEXT=0 if workspace.runners_up is None else NUM_NEXT,
        num_warps=4,
        **pdl_options(),
    )
    return workspace.results


def read_results(results: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(4, rows) int32 -> token ids int64, confidence and entropy fp32, is_finite bool."""
    floats = results.view(torch.float32)
    return results[0].long(), floats[1], floats[2], results[3].bool()
