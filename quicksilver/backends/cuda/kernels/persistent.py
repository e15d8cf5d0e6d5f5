"""A small network's forward in one launch: programs stay on the chip and wait for each other between a layer's parts.

A launch costs more than the work of a small layer; a wait costs about a microsecond. Rows go in tiles and nothing is
cut along the depth, so a row's numbers depend on what it sees, never on its company.
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
    finish_part,
    leave,
    start_part,
)
from quicksilver.backends.cuda.kernels.persistent_attention import attend_part, num_attends, used_tiles
from quicksilver.backends.cuda.kernels.persistent_linear import add_part, fetch_layer, gate_part, qkv_part

ROW_TILE = 16
"""Rows and columns of a tile: the smallest that the matrix unit takes."""
WHOLE_SPLITS = 4
"""Programs that share the keys of one head and tile."""


@triton.jit
def _embed_rows(
    program, tokens, masks, token_ids, mask_index, gain, x, y, squares, num_masks,
    ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr,
    CANVAS: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    d, tile = tl.arange(0, BLOCK), tl.arange(0, TILES)
    for row in range(program, ROWS, PROGRAMS):
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
    program, layer, bell, wq, q_plane, wo, o_plane, gate, eps, bias, keys, values, gain, angles, positions, slots,
    prefix_end, span_start, span_end, tiles, num_tiles, num_shared, pages, forks, scale, max_pages,
    x, y, squares, qkv, attended, part_acc, part_top, part_total, arrived,
    ROWS: tl.constexpr, DIM: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr,
    PAGE: tl.constexpr, TILES: tl.constexpr, KD: tl.constexpr, KQ: tl.constexpr,
    CANVAS: tl.constexpr, KINDS: tl.constexpr, T: tl.constexpr, SPLITS: tl.constexpr, PROGRAMS: tl.constexpr,
    STAGES: tl.constexpr, BIAS: tl.constexpr, FORKS: tl.constexpr,
):  # fmt: skip
    """A layer up to its output linear, which is done but not waited for: OUTPUT counts it."""
    QKVS: tl.constexpr = (HEADS + 2 * KV_HEADS) * D // 32 * (ROWS // T) * KINDS
    ADDS: tl.constexpr = DIM // 16 * (ROWS // T) * KINDS
    QKV_ENDS: tl.constexpr = QKVS if QKVS < PROGRAMS else PROGRAMS
    attends = num_attends(num_tiles, num_shared, HEADS, KV_HEADS, SPLITS)
    qkv_part(program, y, wq, q_plane, gate, squares, eps, bias, qkv, keys, values, angles, positions, slots,
             ROWS, DIM, HEADS, KV_HEADS, D, TILES, KD, CANVAS, KINDS, T, PROGRAMS, STAGES, BIAS)  # fmt: skip
    finish_part(bell, QKV, program, QKVS)
    start_part(bell, QKV, program, attends, (layer + 1) * QKV_ENDS)
    attend_part(program, layer, num_tiles, num_shared, tiles, qkv, keys, values, prefix_end, span_start, span_end,
                pages, scale, max_pages, forks, arrived, part_acc, part_top, part_total, attended,
                ROWS, HEADS, KV_HEADS, D, PAGE, SPLITS, PROGRAMS, FORKS)  # fmt: skip
    finish_part(bell, ATTEND, program, attends)
    start_part(bell, ATTEND, program, ADDS, (layer + 1) * tl.minimum(attends, PROGRAMS))
    add_part(program, attended, wo, o_plane, gate, x, y, squares, gain,
             ROWS, DIM, HEADS * D, KQ, CANVAS, KINDS, T, PROGRAMS, STAGES)  # fmt: skip
    finish_part(bell, OUTPUT, program, ADDS)


@triton.jit
def _ffn_half(
    program, layer, bell, wg, g_plane, wd, d_plane, gate, eps, gain, x, y, squares, ffn,
    ROWS: tl.constexpr, DIM: tl.constexpr, FFN: tl.constexpr, TILES: tl.constexpr, KD: tl.constexpr, KF: tl.constexpr,
    CANVAS: tl.constexpr, KINDS: tl.constexpr, T: tl.constexpr, PROGRAMS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    ADDS: tl.constexpr = DIM // 16 * (ROWS // T) * KINDS
    GATES: tl.constexpr = FFN // 16 * (ROWS // T) * KINDS
    ADD_ENDS: tl.constexpr = ADDS if ADDS < PROGRAMS else PROGRAMS
    GATE_ENDS: tl.constexpr = GATES if GATES < PROGRAMS else PROGRAMS
    start_part(bell, OUTPUT, program, GATES, (layer + 1) * ADD_ENDS)
    gate_part(program, y, wg, g_plane, gate, squares, eps, ffn,
              ROWS, DIM, FFN, TILES, KD, CANVAS, KINDS, T, PROGRAMS, STAGES)  # fmt: skip
    finish_part(bell, GATE, program, GATES)
    start_part(bell, GATE, program, ADDS, (layer + 1) * GATE_ENDS)
    add_part(program, ffn, wd, d_plane, gate, x, y, squares, gain,
             ROWS, DIM, FFN, KF, CANVAS, KINDS, T, PROGRAMS, STAGES)  # fmt: skip
    finish_part(bell, DOWN, program, ADDS)


@triton.jit
def network_kernel(
    tokens, masks, token_ids, mask_index, gate, positions, slots,
    prefix_end, span_start, span_end, tiles, pages, forks,
    w_qkv, w_o, w_gu, w_dn, gains, bias, angles, k_cache, v_cache,
    x, y, squares, qkv, attended, ffn, part_acc, part_top, part_total, bell, arrived,
    eps, scale, max_pages, num_tiles, num_shared, num_masks, cache_stride,
    ROWS: tl.constexpr, LAYERS: tl.constexpr, DIM: tl.constexpr, FFN: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK: tl.constexpr, TILES: tl.constexpr, KD: tl.constexpr, KQ: tl.constexpr, KF: tl.constexpr,
    CANVAS: tl.constexpr, KINDS: tl.constexpr, T: tl.constexpr, SPLITS: tl.constexpr, PROGRAMS: tl.constexpr,
    SLOTS: tl.constexpr, STAGES: tl.constexpr, FETCH: tl.constexpr, BIAS: tl.constexpr, FORKS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    Q: tl.constexpr = HEADS * D
    N_QKV: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    QKVS: tl.constexpr = N_QKV // 32 * (ROWS // T) * KINDS
    ADDS: tl.constexpr = DIM // 16 * (ROWS // T) * KINDS
    _embed_rows(program, tokens, masks, token_ids, mask_index, gains, x, y, squares, num_masks,
                ROWS, DIM, BLOCK, TILES, CANVAS, PROGRAMS)  # fmt: skip
    finish_part(bell, EMBED, program, ROWS)
    if SLOTS > 0:
        num_tiles = used_tiles(tiles, num_tiles, SLOTS)
        num_shared = num_tiles
    for layer in range(LAYERS):
        at = tl.cast(layer, tl.int64)
        wq, wo = w_qkv + at * (N_QKV * DIM), w_o + at * (DIM * Q)
        wg, wd, gain = w_gu + at * (2 * FFN * DIM), w_dn + at * (DIM * FFN), gains + 2 * at * DIM
        if FETCH:
            fetch_layer(program, wq + N_QKV * DIM, wo, wg, wd, layer + 1 < LAYERS, LAYERS, DIM, FFN, Q, N_QKV,
                        2 if CANVAS else 1)  # fmt: skip
        if layer == 0:
            start_part(bell, EMBED, program, QKVS, ROWS if ROWS < PROGRAMS else PROGRAMS)
        else:
            start_part(bell, DOWN, program, QKVS, layer * (ADDS if ADDS < PROGRAMS else PROGRAMS))
        _attention_half(
            program, layer, bell, wq, LAYERS * N_QKV * DIM, wo, LAYERS * DIM * Q, gate, eps, bias + at * N_QKV,
            k_cache + at * cache_stride, v_cache + at * cache_stride, gain + DIM, angles, positions, slots, prefix_end,
            span_start, span_end, tiles, num_tiles, num_shared, pages, forks, scale, max_pages,
            x, y, squares, qkv, attended, part_acc, part_top, part_total, arrived,
            ROWS, DIM, HEADS, KV_HEADS, D, PAGE, TILES, KD, KQ, CANVAS, KINDS, T, SPLITS, PROGRAMS, STAGES,
            BIAS, FORKS,
        )  # fmt: skip
        _ffn_half(
            program, layer, bell, wg, LAYERS * 2 * FFN * DIM, wd, LAYERS * DIM * FFN, gate, eps, gain + 2 * DIM,
            x, y, squares, ffn, ROWS, DIM, FFN, TILES, KD, KF, CANVAS, KINDS, T, PROGRAMS, STAGES,
        )  # fmt: skip
    leave(bell, arrived, num_shared * KV_HEADS if FORKS else 0, PROGRAMS)
