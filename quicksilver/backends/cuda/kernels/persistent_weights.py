"""Stacked weights of a small model, and the launch of the persistent kernel.

All layers' matrices are copied into one tensor each, plus a second copy with the canvas adapter merged in. Only for
models whose copies are small compared with the KV cache; larger models are bound by the loading of weights and gain
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from quicksilver.backends.cuda.kernels.attention import AttentionShape
from quicksilver.backends.cuda.kernels.grid_sync import NUM_COUNTERS
from quicksilver.backends.cuda.kernels.persistent import PERSISTENT_SPLITS, ROW_TILE, network_kernel
from quicksilver.backends.cuda.kernels.weights import LayerWeights, NetworkWeights
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig

if TYPE_CHECKING:
    from quicksilver.backends.cuda.kernels.workspace import RowInputs, Workspace

# Weight bytes, including the head, of the largest model that gets copies.
PERSISTENT_MAX_BYTES = 500_000_000
# Largest batch; larger ones use cuBLAS.
PERSISTENT_MAX_ROWS = 128
# Pipeline stages: all of K for a narrow model.
STAGES = 9
# By rows per tile: larger tiles have fewer stages, because two CTAs must fit on an SM.
_STAGES_OF = {32: 6}
WARPS = 4
# Rows per tile for more than 16 rows: 16 or 32.
TILE_ROWS = 32
# Whether attention distributes and awaits only tiles with rows.
SKIP_EMPTY_TILES = False
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class StackedWeights:
    """Matrices (copies, layers, out, in): the plain weights and, with an adapter, those of canvas rows."""

    qkv: Tensor
    o: Tensor
    gate_up: Tensor
    down: Tensor
    gains: Tensor  # (2 layers + 1, dim): every norm in the order of the forward
    bias: Tensor | None  # (layers, out) of qkv
    barrier: Tensor  # barrier counters, then those of attention's splits; zero between launches


def fits_persistent(config: ModelConfig, weights: NetworkWeights, limit: int = PERSISTENT_MAX_BYTES) -> bool:
    """Whether the kernel supports this model, and the model is small enough to gain."""
    widths = (config.dim, config.q_dim, config.ffn_dim)
    is_plain = not config.qk_norm and weights.head.scale is None
    return is_plain and weights.num_bytes <= limit and all(width % 32 == 0 for width in widths)


def persistent_attention_shape(config: ModelConfig) -> AttentionShape:
    """Attention tiles of ROW_TILE rows, for any number of heads."""
    group = config.num_heads // config.num_kv_heads
    return AttentionShape(config.num_heads, config.num_kv_heads, config.head_dim, ROW_TILE * group, PERSISTENT_SPLITS)


def stack_weights(config: ModelConfig, weights: NetworkWeights) -> StackedWeights:
    layers = weights.layers
    gains = [norm.gain for layer in layers for norm in (layer.attn_norm, layer.ffn_norm)] + [weights.norm.gain]
    biases = [layer.qkv.bias for layer in layers if layer.qkv.bias is not None]
    # Every row of a bucket may be a sequence with a tile of its own.
    counters = NUM_COUNTERS + 2 * PERSISTENT_MAX_ROWS * config.num_heads
    return StackedWeights(
        _stack_copies(layers, "qkv", "qkv"),
        _stack_copies(layers, "o", "o"),
        _stack_copies(layers, "gate_up", "gu"),
        _stack_copies(layers, "down", "dn"),
        torch.stack(gains).contiguous(),
        torch.stack(biases).contiguous() if biases else None,
        torch.zeros(counters, dtype=torch.int32, device=weights.tokens.device),
    )


def _stack_copies(layers: tuple[LayerWeights, ...], name: str, lora: str) -> Tensor:
    """`name` is a field of LayerWeights, `pair` its adapter's."""
    plain = [getattr(layer, name).w for layer in layers]
    if not layers[0].canvas:
        return torch.stack(plain)[None]
    merged = [w + (layer.canvas[lora].b.float() @ layer.canvas[lora].a.float()).to(w.dtype)
              for w, layer in zip(plain, layers, strict=True)]  # fmt: skip
    return torch.stack((torch.stack(plain), torch.stack(merged)))


def num_ctas_for(num_rows: int, device: torch.device) -> int:
    """One CTA per SM for up to 16 rows, else two. 64 KB of shared memory and 256 registers for each of 128 threads
    allow two resident CTAs; with more the barriers would deadlock. The interpreter runs programs one after the other,
    so it gets one."""
    if device.type != "cuda":
        return 1
    share = 1 if num_rows <= ROW_TILE or WARPS > 4 else 2
    return torch.cuda.get_device_properties(device).multi_processor_count * share


def rows_per_tile(num_rows: int) -> int:
    """Rows per tile of the linears."""
    return TILE_ROWS if num_rows > ROW_TILE and num_rows % TILE_ROWS == 0 else ROW_TILE


def run_persistent(
    config: ModelConfig, weights: tuple[NetworkWeights, StackedWeights], place: tuple[PagedCache, Tensor],
    rows: RowInputs, workspace: Workspace, is_gated: bool,
) -> Tensor:  # fmt: skip
    """-> `workspace.x`, as `CudaNetwork.run`; `place` is the KV cache and the RoPE angles."""
    (network, stacked), (cache, angles) = weights, place
    tables, attend, count = rows.tables, workspace.attend, len(workspace.x)
    is_gated = is_gated and network.masks is not None
    masks = network.masks if is_gated and network.masks is not None else network.tokens
    ctas, tile = num_ctas_for(count, workspace.x.device), rows_per_tile(count)
    network_kernel[(ctas,)](
        network.tokens, masks, rows.token_ids, rows.mask_index, rows.gate, rows.where.positions, rows.where.slots,
        tables.prefix_end, tables.span_start, tables.span_end, tables.tiles, tables.pages,
        tables.tiles if tables.tree_slots is None else tables.tree_slots,
        stacked.qkv, stacked.o, stacked.gate_up, stacked.down, stacked.gains,
        stacked.gains if stacked.bias is None else stacked.bias, angles, cache.k, cache.v,
        workspace.x, workspace.scaled.y, workspace.scaled.squares, workspace.qkv, attend.out, workspace.ffn,
        attend.acc, attend.top, attend.total, stacked.barrier, stacked.barrier[NUM_COUNTERS:],
        network.norm.eps, config.head_dim**-0.5 * _LOG2_E, tables.pages.stride(0), len(tables.tiles), tables.num_shared,
        len(masks), cache.k.stride(0),
        ROWS=count, LAYERS=config.num_layers, DIM=config.dim, FFN=config.ffn_dim, HEADS=config.num_heads,
        KV_HEADS=config.num_kv_heads, D=config.head_dim, PAGE=tables.page_size,
        BLOCK=triton.next_power_of_2(config.dim), TILES=triton.next_power_of_2(config.dim // 16),
        KD=min(64, _block_k(config.dim)), KQ=_block_k(config.q_dim), KF=_block_k(config.ffn_dim),
        CANVAS=is_gated, COPIES=2 if is_gated and count == tile else 1, T=tile, SPLITS=PERSISTENT_SPLITS,
        CTAS=ctas, STAGES=_STAGES_OF.get(tile, STAGES),
        TILE_SLOTS=triton.next_power_of_2(len(tables.tiles)) if SKIP_EMPTY_TILES and tables.tree_slots is None else 0,
        PREFETCH=workspace.x.is_cuda, BIAS=stacked.bias is not None, TREE=tables.tree_slots is not None,
        num_warps=WARPS,
    )  # fmt: skip
    return workspace.x


def _block_k(depth: int) -> int:
    """k-block: the largest of 128, 64 and 32 that divides K."""
    return next(step for step in (128, 64, 32) if depth % step == 0)
