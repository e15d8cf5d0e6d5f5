"""Weights of a small model in the order that `whole.py` reads them, and the launch of its kernel.

Stacked copies of all layers' matrices, a second set with the canvas adapter merged in. Only for models whose copies are
small beside the KV cache; larger ones gain nothing, since their time is the reading of weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from quicksilver.backends.cuda.kernels.attention import AttendShape
from quicksilver.backends.cuda.kernels.grid_sync import NUM_COUNTERS
from quicksilver.backends.cuda.kernels.persistent import ROW_TILE, WHOLE_SPLITS, network_kernel
from quicksilver.backends.cuda.kernels.weights import LayerWeights, NetworkWeights
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig

if TYPE_CHECKING:
    from quicksilver.backends.cuda.kernels.network import RowInputs, Space

RESIDENT_BYTES = 500_000_000
"""Matrices, head included, of the largest model that gets copies."""
RESIDENT_ROWS = 128
"""Beyond this many rows the library's products take over."""
STAGES = 9
"""Loads under way at once: the whole depth of a narrow model."""
_STAGES_OF = {32: 6}
"""By rows of a tile: larger ones have room for fewer, since two programs must fit."""
WARPS = 4
SHARED_ROWS = 32
"""Rows that share one reading of the weights where there are more than 16: 16 or 32."""
COUNTS_USED = False
"""Whether only tiles that have rows are shared out in attention and waited for."""
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Stack:
    """(sets, layers, out, in) each: the plain weights, and those of canvas rows where there is an adapter."""

    qkv: Tensor
    o: Tensor
    gate_up: Tensor
    down: Tensor
    gains: Tensor  # (2 layers + 1, dim): every norm in the order of the forward
    bias: Tensor | None  # (layers, out) of qkv
    bell: Tensor
    """Counters that the programs wait by, zero between launches; then those of the attention's splits."""


def fits(config: ModelConfig, weights: NetworkWeights, limit: int = RESIDENT_BYTES) -> bool:
    """Whether the kernel can run this model, and should."""
    widths = (config.dim, config.q_dim, config.ffn_dim)
    is_plain = not config.qk_norm and weights.head.scale is None
    return is_plain and weights.num_bytes <= limit and all(width % 32 == 0 for width in widths)


def whole_shape(config: ModelConfig) -> AttendShape:
    """Attention's tiles are tiles of rows, whatever the number of heads."""
    group = config.num_heads // config.num_kv_heads
    return AttendShape(config.num_heads, config.num_kv_heads, config.head_dim, ROW_TILE * group, WHOLE_SPLITS)


def stack(config: ModelConfig, weights: NetworkWeights) -> Stack:
    layers = weights.layers
    gains = [norm.gain for layer in layers for norm in (layer.attn_norm, layer.ffn_norm)] + [weights.norm.gain]
    biases = [layer.qkv.bias for layer in layers if layer.qkv.bias is not None]
    # Every row of a bucket may be a sequence, and every sequence has a tile.
    counters = NUM_COUNTERS + 2 * RESIDENT_ROWS * config.num_heads
    return Stack(
        _stack_sets(layers, "qkv", "qkv"),
        _stack_sets(layers, "o", "o"),
        _stack_sets(layers, "gate_up", "gu"),
        _stack_sets(layers, "down", "dn"),
        torch.stack(gains).contiguous(),
        torch.stack(biases).contiguous() if biases else None,
        torch.zeros(counters, dtype=torch.int32, device=weights.tokens.device),
    )


def _stack_sets(layers: tuple[LayerWeights, ...], name: str, pair: str) -> Tensor:
    """`name` is a field of LayerWeights, `pair` its adapter's."""
    plain = [getattr(layer, name).w for layer in layers]
    if not layers[0].canvas:
        return torch.stack(plain)[None]
    merged = [w + (layer.canvas[pair].b.float() @ layer.canvas[pair].a.float()).to(w.dtype)
              for w, layer in zip(plain, layers, strict=True)]  # fmt: skip
    return torch.stack((torch.stack(plain), torch.stack(merged)))


def programs_for(num_rows: int, device: torch.device) -> int:
    """One a multiprocessor for the fewest rows, two beyond: 64 KB of shared memory and 256 registers a thread of 128
    let two stay at once, and no more: programs that wait for one without a place would wait for ever. The interpreter
    runs programs one after the other, so there it is one."""
    if device.type != "cuda":
        return 1
    share = 1 if num_rows <= ROW_TILE or WARPS > 4 else 2
    return torch.cuda.get_device_properties(device).multi_processor_count * share


def row_tile(num_rows: int) -> int:
    """Rows of a tile of the linears."""
    return SHARED_ROWS if num_rows > ROW_TILE and num_rows % SHARED_ROWS == 0 else ROW_TILE


def run_whole(
    config: ModelConfig, weights: tuple[NetworkWeights, Stack], place: tuple[PagedCache, Tensor],
    rows: RowInputs, space: Space, is_gated: bool,
) -> Tensor:  # fmt: skip
    """-> `space.x`, as `Network.run`; `place` is the cache and the table of angles."""
    (network, stacked), (cache, angles) = weights, place
    tables, attend, count = rows.tables, space.attend, len(space.x)
    is_gated = is_gated and network.masks is not None
    masks = network.masks if is_gated and network.masks is not None else network.tokens
    programs, tile = programs_for(count, space.x.device), row_tile(count)
    network_kernel[(programs,)](
        network.tokens, masks, rows.token_ids, rows.mask_index, rows.gate, rows.where.positions, rows.where.slots,
        tables.prefix_end, tables.span_start, tables.span_end, tables.tiles, tables.pages,
        tables.tiles if tables.forks is None else tables.forks,
        stacked.qkv, stacked.o, stacked.gate_up, stacked.down, stacked.gains,
        stacked.gains if stacked.bias is None else stacked.bias, angles, cache.k, cache.v,
        space.x, space.scaled.y, space.scaled.squares, space.qkv, attend.out, space.ffn,
        attend.acc, attend.top, attend.total, stacked.bell, stacked.bell[NUM_COUNTERS:],
        network.norm.eps, config.head_dim**-0.5 * _LOG2_E, tables.pages.stride(0), len(tables.tiles), tables.num_shared,
        len(masks), cache.k.stride(0),
        ROWS=count, LAYERS=config.num_layers, DIM=config.dim, FFN=config.ffn_dim, HEADS=config.num_heads,
        KV_HEADS=config.num_kv_heads, D=config.head_dim, PAGE=tables.page_size,
        BLOCK=triton.next_power_of_2(config.dim), TILES=triton.next_power_of_2(config.dim // 16),
        KD=min(64, _depth_step(config.dim)), KQ=_depth_step(config.q_dim), KF=_depth_step(config.ffn_dim),
        CANVAS=is_gated, KINDS=2 if is_gated and count == tile else 1, T=tile, SPLITS=WHOLE_SPLITS,
        PROGRAMS=programs, STAGES=_STAGES_OF.get(tile, STAGES),
        SLOTS=triton.next_power_of_2(len(tables.tiles)) if COUNTS_USED and tables.forks is None else 0,
        FETCH=space.x.is_cuda, BIAS=stacked.bias is not None, FORKS=tables.forks is not None, num_warps=WARPS,
    )  # fmt: skip
    return space.x


def _depth_step(depth: int) -> int:
    """How much of a depth is read at once."""
    return next(step for step in (128, 64, 32) if depth % step == 0)
