"""The output head of random canvases: likeliest and sampled tokens, confidence, entropy, and soft embeddings.

The logits of a canvas are stored once, in the dtype of the network, as plain torch computes them before it widens them.
Every kernel applies softcap and temperatures where it reads them. The probabilities of the soft embeddings replace the
logits in place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.backends.cuda.kernels.gemma_network import matmul
from quicksilver.backends.cuda.kernels.gemma_rows import Rows
from quicksilver.backends.cuda.kernels.head import _gumbel
from quicksilver.backends.cuda.kernels.linears import Weight
from quicksilver.backends.cuda.kernels.row_kernels import quantise_rows

# Tokens of a vocabulary tile.
BLOCK_V = 4096
# Columns of the vocabulary that are added at a time to a soft embedding (`model/gemma.py`).
_VOCAB_CHUNK = 8192
# Values per (tile, row), and results per row: token, confidence, entropy, is_finite, sampled token.
_PLANES, NUM_RESULTS = 8, 5


@dataclass(frozen=True, slots=True)
class CanvasDraws:
    """Sampling parameters, one entry per row. `step_temperature` divides the logits; `temperature` is that of the
    sampled token, 0 for the likeliest one."""

    step_temperature: Tensor  # fp32
    temperature: Tensor  # fp32
    seeds: Tensor  # int64
    positions: Tensor  # int64
    steps: Tensor  # int64


@triton.jit
def _processed(raw, cap, temperature):
    """cap * tanh(raw / cap) / temperature; a banned token stays at minus infinity."""
    wide = raw.to(tl.float32)
    u = wide / cap
    t = tl.exp(-2.0 * tl.abs(u))
    size = (1.0 - t) / (1.0 + t)
    return tl.where(wide == float("-inf"), wide, tl.where(u < 0, -size, size) * cap / temperature)


@triton.jit
def _tile_kernel(
    raw, step_temperature, temperature, seeds, positions, steps, tiles, cap, V, num_rows, BLOCK: tl.constexpr
):
    """One program per row and tile: the best token, the sums of the softmax, the best sampled token, and the sum of the
    softmax of rounded logits."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    v = tile * BLOCK + tl.arange(0, BLOCK)
    is_token = v < V
    given = tl.load(raw + row * V + v, mask=is_token, other=float("-inf"))
    z = _processed(given, cap, tl.load(step_temperature + row))
    top = tl.max(z, 0)
    offset = tl.where(z == float("-inf"), float("-inf"), z - top)
    p = tl.exp(offset)
    at, plane = tiles + tile * num_rows + row, tl.num_programs(1).to(tl.int64) * num_rows
    tl.store(at, top)
    tl.store(at + plane, (tile * BLOCK + tl.argmax(z, 0)).to(tl.int32).to(tl.float32, bitcast=True))
    tl.store(at + 2 * plane, tl.sum(p, 0))
    tl.store(at + 3 * plane, tl.sum(tl.where(offset == float("-inf"), 0.0, p * offset), 0))
    rounded = z.to(raw.dtype.element_ty).to(tl.float32)
    rounded_top = tl.max(rounded, 0)
    tl.store(at + 4 * plane, rounded_top)
    tl.store(at + 5 * plane, tl.sum(tl.where(z == float("-inf"), 0.0, tl.exp(rounded - rounded_top)), 0))
    t = tl.load(temperature + row)
    if t > 0:
        noise = _gumbel(tl.load(seeds + row)[None], tl.load(positions + row)[None], tl.load(steps + row)[None], v)
        z = z / tl.maximum(t, 1e-5) + tl.reshape(noise, (BLOCK,))
    tl.store(at + 6 * plane, tl.max(z, 0))
    tl.store(at + 7 * plane, (tile * BLOCK + tl.argmax(z, 0)).to(tl.int32).to(tl.float32, bitcast=True))


@triton.jit
def _row_kernel(tiles, results, log_totals, num_tiles, num_rows, BLOCK: tl.constexpr):
    """One program per row: the tiles become the results, and the logarithm of the sum of rounded logits."""
    row, t = tl.program_id(0), tl.arange(0, BLOCK)
    is_tile, plane = t < num_tiles, num_tiles.to(tl.int64) * num_rows
    at = tiles + t * num_rows + row
    top = tl.load(at, mask=is_tile, other=float("-inf"))
    peak, first = tl.max(top, 0), tl.argmax(top, 0)
    offset = tl.where(top == float("-inf"), 0.0, top - peak)
    weight = tl.where(top == float("-inf"), 0.0, tl.exp(offset))
    sums = tl.load(at + 2 * plane, mask=is_tile, other=0.0)
    total = tl.sum(weight * sums, 0)
    weighted = tl.sum(weight * (tl.load(at + 3 * plane, mask=is_tile, other=0.0) + sums * offset), 0)
    log_total = peak + tl.log(total)
    is_finite = (log_total > -3.0e38) & (log_total < 3.0e38)
    tl.store(results + row, tl.load(tiles + plane + first * num_rows + row).to(tl.int32, bitcast=True))
    tl.store(results + num_rows + row, tl.exp(peak - log_total).to(tl.int32, bitcast=True))
    tl.store(results + 2 * num_rows + row, (tl.log(total) - weighted / total).to(tl.int32, bitcast=True))
    tl.store(results + 3 * num_rows + row, is_finite.to(tl.int32))
    score = tl.load(at + 6 * plane, mask=is_tile, other=float("-inf"))
    best = tl.argmax(score, 0)
    sampled = tl.load(tiles + 7 * plane + best * num_rows + row).to(tl.int32, bitcast=True)
    tl.store(results + 4 * num_rows + row, sampled)
    top = tl.load(at + 4 * plane, mask=is_tile, other=float("-inf"))
    peak = tl.max(top, 0)
    sums = tl.load(at + 5 * plane, mask=is_tile, other=0.0)
    tl.store(log_totals + row, peak + tl.log(tl.sum(tl.where(top == float("-inf"), 0.0, tl.exp(top - peak)) * sums, 0)))


@triton.jit
def _probability_kernel(raw, step_temperature, log_totals, cap, V, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    given = tl.load(raw + row * V + v, mask=v < V, other=0.0)
    z = _processed(given, cap, tl.load(step_temperature + row)).to(raw.dtype.element_ty).to(tl.float32)
    p = tl.exp(z - tl.load(log_totals + row))
    tl.store(raw + row * V + v, p.to(raw.dtype.element_ty), mask=v < V)


@dataclass(frozen=True, slots=True)
class CanvasLogits:
    """The logits of one forward before the softcap, and the sums that turn them into probabilities."""

    raw: Tensor  # (rows, vocab)
    step_temperature: Tensor
    log_totals: Tensor  # (rows,) fp32
    cap: float


def raw_logits(hidden: Tensor, head: Weight) -> Tensor:
    """hidden (rows, dim) after the final norm -> (rows, vocab) before the softcap."""
    given = Rows(hidden) if head.scale is None else Rows(*quantise_rows(hidden))
    return matmul(given, head, hidden.dtype)


def propose_canvas(raw: Tensor, cap: float, draws: CanvasDraws, results: Tensor) -> CanvasLogits:
    """`raw`: minus infinity bans a token -> `results` (NUM_RESULTS, rows) int32, where confidence and entropy are fp32
    bits."""
    (num_rows, vocab_size), num_tiles = raw.shape, triton.cdiv(raw.shape[1], BLOCK_V)
    tiles = torch.empty(_PLANES, num_tiles, num_rows, device=raw.device)
    log_totals = torch.empty(num_rows, device=raw.device)
    _tile_kernel[(num_rows, num_tiles)](
        raw, draws.step_temperature, draws.temperature, draws.seeds, draws.positions, draws.steps, tiles, cap,
        vocab_size, num_rows, BLOCK=BLOCK_V, num_warps=8,
    )  # fmt: skip
    _row_kernel[(num_rows,)](
        tiles, results, log_totals, num_tiles, num_rows, BLOCK=triton.next_power_of_2(num_tiles), num_warps=1
    )
    return CanvasLogits(raw, draws.step_temperature, log_totals, cap)


def soft_embeddings(logits: CanvasLogits, table: Tensor, embed_scale: Tensor) -> Tensor:
    """The expected scaled embeddings (rows, dim) of the rows of `logits`, which are overwritten. Chunks of the
    vocabulary are added in fp32."""
    p, (num_rows, vocab_size) = logits.raw, logits.raw.shape
    _probability_kernel[(num_rows, triton.cdiv(vocab_size, BLOCK_V))](
        p, logits.step_temperature, logits.log_totals, logits.cap, vocab_size, BLOCK=BLOCK_V, num_warps=8
    )
    num_whole = vocab_size // _VOCAB_CHUNK
    end = num_whole * _VOCAB_CHUNK
    total = torch.zeros(num_rows, table.shape[1], device=p.device)
    if num_whole:
        chunks = p[:, :end].view(num_rows, num_whole, _VOCAB_CHUNK).transpose(0, 1)
        parts = torch.bmm(chunks, table[:end].view(num_whole, _VOCAB_CHUNK, -1))
        total = parts.sum(0, dtype=torch.float32)
    if end < vocab_size:
        total = total + (p[:, end:] @ table[end:]).float()
    return total.to(table.dtype) * embed_scale
