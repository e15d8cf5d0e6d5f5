"""A layer's attention half in one launch: qkv, attention and output, for models whose feed-forward half is better off
with launches of its own.

The same parts as `whole.py`, waiting for each other by parts. Reads stacked copies of the two matrices, a second set
with the canvas adapter merged in, so rows of both kinds go through one launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from quicksilver.model.kernels.attention import AttendShape
from quicksilver.model.kernels.resident import LOG2_E, depth_step, stack_sets
from quicksilver.model.kernels.weights import NetworkWeights
from quicksilver.model.kernels.whole import ROW_TILE, attention_half
from quicksilver.model.kernels.whole_linear import fetch_columns
from quicksilver.model.kernels.whole_meet import NUM_COUNTERS, leave

if TYPE_CHECKING:
    from quicksilver.model.kernels.network import RowInputs, Space

BLOCK_BYTES = 0
"""Matrices, head included, of the largest model whose attention halves are one launch each."""
SPLITS = 8
"""Programs that share the keys of one head and tile."""
STAGES = 7
"""Loads under way at once; in three chains 4 are as many."""
CHAINS = 1
"""Chains of products along the depth: 1 or 3."""


@dataclass(frozen=True, slots=True)
class Block:
    """(sets, layers, out, in) each, and the counters, zero between launches."""

    qkv: Tensor
    o: Tensor
    bell: Tensor

    @classmethod
    def make(cls, config: ModelConfig, weights: NetworkWeights, max_rows: int) -> Block:
        counters = NUM_COUNTERS + 2 * max_rows * config.num_heads
        bell = torch.zeros(counters, dtype=torch.int32, device=weights.tokens.device)
        return cls(stack_sets(weights.layers, "qkv", "qkv"), stack_sets(weights.layers, "o", "o"), bell)


def fits_block(config: ModelConfig, weights: NetworkWeights) -> bool:
    """Whether the kernel can run this model, and should."""
    is_plain = not config.qk_norm and weights.head.scale is None
    return is_plain and weights.num_bytes <= BLOCK_BYTES and config.dim % 32 == 0 and config.q_dim % 32 == 0


def block_shape(config: ModelConfig) -> AttendShape:
    """Attention's tiles are tiles of 16 rows, whatever the number of heads."""
    group = config.num_heads // config.num_kv_heads
    return AttendShape(config.num_heads, config.num_kv_heads, config.head_dim, ROW_TILE * group, SPLITS)


@triton.jit
def _block_kernel(
    wq, wo, q_plane, o_plane, gate, bias, gain, keys, values, angles, positions, slots,
    prefix_end, span_start, span_end, tiles, pages, x, y, squares_in, squares_out, qkv, attended,
    part_acc, part_top, part_total, bell, arrived, eps, scale, max_pages, num_tiles,
    ROWS: tl.constexpr, DIM: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr,
    PAGE: tl.constexpr, SQUARES: tl.constexpr, TILES: tl.constexpr, KD: tl.constexpr, KQ: tl.constexpr,
    LINES: tl.constexpr, CANVAS: tl.constexpr, SPLITS: tl.constexpr, PROGRAMS: tl.constexpr, STAGES: tl.constexpr,
    CHAINS: tl.constexpr, BIAS: tl.constexpr, FETCH: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if FETCH:
        fetch_columns(program, wo, o_plane, 0, DIM // 16, HEADS * D, LINES, 2 if CANVAS else 1, False)
    attention_half(
        program, 0, 0, bell, wq, q_plane, wo, o_plane, gate, eps, bias, keys, values, gain, angles, positions, slots,
        prefix_end, span_start, span_end, tiles, num_tiles, pages, scale, max_pages,
        x, y, squares_in, squares_out, qkv, attended, part_acc, part_top, part_total, arrived,
        ROWS, DIM, HEADS, KV_HEADS, D, PAGE, SQUARES, TILES, KD, KQ, CANVAS, 1, 16, SPLITS, PROGRAMS, STAGES, CHAINS,
        BIAS, True,
    )  # fmt: skip
    leave(bell, PROGRAMS)


def run_block(
    config: ModelConfig, index: int, weights: tuple[NetworkWeights, Block], place: tuple[PagedCache, Tensor],
    rows: RowInputs, space: Space, is_gated: bool,
) -> None:  # fmt: skip
    """Layer `index` up to `space.x` after its output linear; `space.halfway` gets what the norm behind it needs."""
    (network, block), (cache, angles) = weights, place
    layer, tables, attend, count = network.layers[index], rows.tables, space.attend, len(space.x)
    is_cuda = space.x.is_cuda
    programs = torch.cuda.get_device_properties(space.x.device).multi_processor_count if is_cuda else 1
    squares, bias = space.scaled.squares, layer.qkv.bias
    assert space.halfway is not None
    _block_kernel[(programs,)](
        block.qkv[0, index], block.o[0, index], block.qkv.stride(0), block.o.stride(0), rows.gate,
        layer.ffn_norm.gain if bias is None else bias, layer.ffn_norm.gain, cache.k[index], cache.v[index], angles,
        rows.where.positions, rows.where.slots, tables.prefix_end, tables.span_start, tables.span_end, tables.tiles,
        tables.pages, space.x, space.scaled.y, squares, space.halfway, space.qkv, attend.out,
        attend.acc, attend.top, attend.total, block.bell, block.bell[NUM_COUNTERS:],
        layer.attn_norm.eps, config.head_dim**-0.5 * LOG2_E, tables.pages.stride(0), tables.tiles.shape[0],
        ROWS=count, DIM=config.dim, HEADS=config.num_heads, KV_HEADS=config.num_kv_heads, D=config.head_dim,
        PAGE=tables.page_size, SQUARES=len(squares), TILES=triton.next_power_of_2(len(squares)),
        KD=depth_step(config.dim), KQ=depth_step(config.q_dim), LINES=triton.next_power_of_2(-(-config.q_dim // 64)),
        CANVAS=is_gated, SPLITS=SPLITS, PROGRAMS=programs, STAGES=STAGES if CHAINS == 1 else 4, CHAINS=CHAINS,
        BIAS=bias is not None, FETCH=is_cuda, num_warps=4,
    )  # fmt: skip
