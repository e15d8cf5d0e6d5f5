"""The forward of a small network as one persistent kernel: CTAs stay resident and synchronise between phases.

A launch costs more than the work of a small layer; a barrier costs about a microsecond. Rows are processed in tiles and
K is never split, so the forward is batch-invariant.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quicksilver.backends.cuda.kernels.grid_sync import (
    ATTEND,
    DOWN,
    EMBED,
    GATE,
    OUTPUT,
    QKV,
    exit_kernel,
    signal_phase,
    wait_phase,
)
from quicksilver.backends.cuda.kernels.persistent_attention import attend_phase, count_used_tiles, num_attends
from quicksilver.backends.cuda.kernels.persistent_linear import add_phase, gate_phase, prefetch_layer, qkv_phase

# Rows and columns of a tile: the smallest MMA shape.
ROW_TILE = 16
# Attention splits per head and tile.
PERSISTENT_SPLITS = 4


@triton.jit
def _embed_rows(
    cta, tokens, masks, token_ids, mask_index, gain, x, y, squares, num_masks,
    ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr,
    CANVAS: tl.constexpr, CTAS: tl.constexpr,
):  # fmt: skip
    d, tile = tl.arange(0, BLOCK), tl.arange(0, TILES)
    for row in range(cta, ROWS, CTAS):
        source = tokens + tl.load(token_ids + row).to(tl.int64) * DIM
        if CANVAS:
            index = tl.load(mask_index + row)
            if index >= 0:
                source = masks + tl.minimum(index, num_masks - 1).to(tl.int64) * DIM
        wide = tl.load(source + d, mask=d < DIM, other=0.0).to(tl.float32)
        tl.store(x + row * DIM + d, wide.to(x.dtype.element_ty), mask=d < DIM)
        gains = tl.load(gain + d, mask=d < DIM, other=0.0).to(tl.float32)
        tl.store(y + row * DIM + d, (wide * gains).to(y.dtype.element_ty), mask=d < DIM)
        total = tl.where(tile == 0, tl.sum(wide * wide, 0), 0.0)
        tl.store(squares + tile * ROWS + row, total, mask=tile < DIM // 16)


@triton.jit
def _attention_half(
    cta, layer, barrier, wq, q_stride, wo, o_stride, gate, eps, bias, keys, values, gain, angles, positions, slots,
    prefix_end, span_start, span_end, tiles, num_tiles, num_shared, pages, tree_slots, scale, max_pages,
    x, y, squares, qkv, attended, part_acc, part_top, part_total, arrived,
    ROWS: tl.constexpr, DIM: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr,
    PAGE: tl.constexpr, TILES: tl.constexpr, KD: tl.constexpr, KQ: tl.constexpr,
    CANVAS: tl.constexpr, COPIES: tl.constexpr, T: tl.constexpr, SPLITS: tl.constexpr, CTAS: tl.constexpr,
    STAGES: tl.constexpr, BIAS: tl.constexpr, TREE: tl.constexpr,
):  # fmt: skip
    """A layer up to its output linear. The OUTPUT phase is signalled but not waited for."""
    QKVS: tl.constexpr = (HEADS + 2 * KV_HEADS) * D // 32 * (ROWS // T) * COPIES
    ADDS: tl.constexpr = DIM // 16 * (ROWS // T) * COPIES
    QKV_ENDS: tl.constexpr = QKVS if QKVS < CTAS else CTAS
    attends = num_attends(num_tiles, num_shared, HEADS, KV_HEADS, SPLITS)
    qkv_phase(cta, y, wq, q_stride, gate, squares, eps, bias, qkv, keys, values, angles, positions, slots,
             ROWS, DIM, HEADS, KV_HEADS, D, TILES, KD, CANVAS, COPIES, T, CTAS, STAGES, BIAS)  # fmt: skip
    signal_phase(barrier, QKV, cta, QKVS)
    wait_phase(barrier, QKV, cta, attends, (layer + 1) * QKV_ENDS)
    attend_phase(cta, layer, num_tiles, num_shared, tiles, qkv, keys, values, prefix_end, span_start, span_end,
                pages, scale, max_pages, tree_slots, arrived, part_acc, part_top, part_total, attended,
                ROWS, HEADS, KV_HEADS, D, PAGE, SPLITS, CTAS, TREE)  # fmt: skip
    signal_phase(barrier, ATTEND, cta, attends)
    wait_phase(barrier, ATTEND, cta, ADDS, (layer + 1) * tl.minimum(attends, CTAS))
    add_phase(cta, attended, wo, o_stride, gate, x, y, squares, gain,
             ROWS, DIM, HEADS * D, KQ, CANVAS, COPIES, T, CTAS, STAGES)  # fmt: skip
    signal_phase(barrier, OUTPUT, cta, ADDS)


@triton.jit
def _ffn_half(
    cta, layer, barrier, wg, g_stride, wd, d_stride, gate, eps, gain, x, y, squares, ffn,
    ROWS: tl.constexpr, DIM: tl.constexpr, FFN: tl.constexpr, TILES: tl.constexpr, KD: tl.constexpr, KF: tl.constexpr,
    CANVAS: tl.constexpr, COPIES: tl.constexpr, T: tl.constexpr, CTAS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    ADDS: tl.constexpr = DIM // 16 * (ROWS // T) * COPIES
    GATES: tl.constexpr = FFN // 16 * (ROWS // T) * COPIES
    ADD_ENDS: tl.constexpr = ADDS if ADDS < CTAS else CTAS
    GATE_ENDS: tl.constexpr = GATES if GATES < CTAS else CTAS
    wait_phase(barrier, OUTPUT, cta, GATES, (layer + 1) * ADD_ENDS)
    gate_phase(cta, y, wg, g_stride, gate, squares, eps, ffn,
              ROWS, DIM, FFN, TILES, KD, CANVAS, COPIES, T, CTAS, STAGES)  # fmt: skip
    signal_phase(barrier, GATE, cta, GATES)
    wait_phase(barrier, GATE, cta, ADDS, (layer + 1) * GATE_ENDS)
    add_phase(cta, ffn, wd, d_stride, gate, x, y, squares, gain,
             ROWS, DIM, FFN, KF, CANVAS, COPIES, T, CTAS, STAGES)  # fmt: skip
    signal_phase(barrier, DOWN, cta, ADDS)


@triton.jit
def network_kernel(
    tokens, masks, token_ids, mask_index, gate, positions, slots,
    prefix_end, span_start, span_end, tiles, pages, tree_slots,
    w_qkv, w_o, w_gu, w_dn, gains, bias, angles, k_cache, v_cache,
    x, y, squares, qkv, attended, ffn, part_acc, part_top, part_total, barrier, arrived,
    eps, scale, max_pages, num_tiles, num_shared, num_masks, cache_stride,
    ROWS: tl.constexpr, LAYERS: tl.constexpr, DIM: tl.constexpr, FFN: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK: tl.constexpr, TILES: tl.constexpr, KD: tl.constexpr, KQ: tl.constexpr, KF: tl.constexpr,
    CANVAS: tl.constexpr, COPIES: tl.constexpr, T: tl.constexpr, SPLITS: tl.constexpr, CTAS: tl.constexpr,
    TILE_SLOTS: tl.constexpr, STAGES: tl.constexpr, PREFETCH: tl.constexpr, BIAS: tl.constexpr, TREE: tl.constexpr,
):  # fmt: skip
    cta = tl.program_id(0)
    Q: tl.constexpr = HEADS * D
    N_QKV: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    QKVS: tl.constexpr = N_QKV // 32 * (ROWS // T) * COPIES
    ADDS: tl.constexpr = DIM // 16 * (ROWS // T) * COPIES
    _embed_rows(cta, tokens, masks, token_ids, mask_index, gains, x, y, squares, num_masks,
                ROWS, DIM, BLOCK, TILES, CANVAS, CTAS)  # fmt: skip
    signal_phase(barrier, EMBED, cta, ROWS)
    if TILE_SLOTS > 0:
        num_tiles = count_used_tiles(tiles, num_tiles, TILE_SLOTS)
        num_shared = num_tiles
    for layer in range(LAYERS):
        at = tl.cast(layer, tl.int64)
        wq, wo = w_qkv + at * (N_QKV * DIM), w_o + at * (DIM * Q)
        wg, wd, gain = w_gu + at * (2 * FFN * DIM), w_dn + at * (DIM * FFN), gains + 2 * at * DIM
        if PREFETCH:
            prefetch_layer(cta, wq + N_QKV * DIM, wo, wg, wd, layer + 1 < LAYERS, LAYERS, DIM, FFN, Q, N_QKV,
                        2 if CANVAS else 1)  # fmt: skip
        if layer == 0:
            wait_phase(barrier, EMBED, cta, QKVS, ROWS if ROWS < CTAS else CTAS)
        else:
            wait_phase(barrier, DOWN, cta, QKVS, layer * (ADDS if ADDS < CTAS else CTAS))
        _attention_half(
            cta, layer, barrier, wq, LAYERS * N_QKV * DIM, wo, LAYERS * DIM * Q, gate, eps, bias + at * N_QKV,
            k_cache + at * cache_stride, v_cache + at * cache_stride, gain + DIM, angles, positions, slots, prefix_end,
            span_start, span_end, tiles, num_tiles, num_shared, pages, tree_slots, scale, max_pages,
            x, y, squares, qkv, attended, part_acc, part_top, part_total, arrived,
            ROWS, DIM, HEADS, KV_HEADS, D, PAGE, TILES, KD, KQ, CANVAS, COPIES, T, SPLITS, CTAS, STAGES,
            BIAS, TREE,
        )  # fmt: skip
        _ffn_half(
            cta, layer, barrier, wg, LAYERS * 2 * FFN * DIM, wd, LAYERS * DIM * FFN, gate, eps, gain + 2 * DIM,
            x, y, squares, ffn, ROWS, DIM, FFN, TILES, KD, KF, CANVAS, COPIES, T, CTAS, STAGES,
        )  # fmt: skip
    exit_kernel(barrier, arrived, num_shared * KV_HEADS if TREE else 0, CTAS)
