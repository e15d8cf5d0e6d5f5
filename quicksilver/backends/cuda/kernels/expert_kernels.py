"""Kernels of `experts.py`: gate and up, down, and the sums of the experts of each row.

A program multiplies a block of an expert's columns by the rows of one tile. The weights are the M side of the MMA, so
that a tile of few rows wastes little. A pair is a row and one of its places, with the index row * PLACES + place; a
place is a chosen expert, or the shared expert as the last place. Each pair has its own column in the MMA, and K is
accumulated in one order, so a pair's result does not depend on the others of its tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quicksilver.backends.cuda.kernels.launch import pdl_launch, pdl_wait, pdl_wait_and_launch
from quicksilver.backends.cuda.kernels.row_kernels import INPUT_SCALE, to_input_format

_INPUT_SCALE = tl.constexpr(INPUT_SCALE)


@triton.jit
def _tile_pairs(records, tile, pairs, capacity, HEIGHT: tl.constexpr):
    """-> the expert of a tile, its pairs, and which of them exist."""
    expert = tl.load(records + 4 * tile)
    place = tl.load(records + 4 * tile + 1) + tl.arange(0, HEIGHT)
    is_pair = place < tl.load(records + 4 * tile + 2)
    pair = tl.load(pairs + expert.to(tl.int64) * capacity + place, mask=is_pair, other=0)
    return expert, pair, is_pair


@triton.jit
def _multiply(
    w, inputs, at_row, is_pair, K,
    COLUMNS: tl.constexpr, HEIGHT: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """(columns, rows): weights at the pointers `w` (columns, 1) times inputs at the pointers `inputs` (rows, 1)."""
    k = tl.arange(0, BLOCK_K)
    acc = tl.zeros((COLUMNS, HEIGHT), tl.float32)
    from_w = w + k[None, :]
    from_inputs = inputs + at_row[:, None] + k[None, :]
    for start in range(0, K, BLOCK_K):
        if EVEN:
            weights = tl.load(from_w + start)
            values = tl.load(from_inputs + start, mask=is_pair[:, None], other=0.0)
        else:
            is_in = (start + k < K)[None, :]
            weights = tl.load(from_w + start, mask=is_in, other=0.0)
            values = tl.load(from_inputs + start, mask=is_pair[:, None] & is_in, other=0.0)
        acc = tl.dot(weights.to(values.dtype), tl.trans(values), acc, input_precision="ieee")
    return acc


@triton.jit(do_not_specialize=["capacity"])
def gate_up_kernel(
    x, w, scale, shared, shared_scale, hidden, records, num_tiles, pairs, capacity, D, F,
    NUM_EXPERTS: tl.constexpr, PLACES: tl.constexpr, HEIGHT: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, EVEN: tl.constexpr, SHARED: tl.constexpr, SCALE: tl.constexpr, GELU: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """hidden (pairs, F) = activation(gate) * up; an expert's weights are F rows of gate, then F rows of up."""
    pdl_wait(PDL)
    tile = tl.program_id(1)
    if tile < tl.load(num_tiles):
        expert, pair, is_pair = _tile_pairs(records, tile, pairs, capacity, HEIGHT)
        base, steps = w + expert.to(tl.int64) * (2 * F * D), scale + expert * (2 * F)
        if SHARED:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
            if expert == NUM_EXPERTS:
                base, steps = shared, shared_scale
        i = tl.arange(0, 2 * BLOCK_N)
        # Columns behind the last one are clamped to it and not stored.
        n = tl.minimum(tl.program_id(0) * BLOCK_N + i % BLOCK_N, F - 1) + tl.where(i < BLOCK_N, 0, F)
        at_row = (pair // PLACES).to(tl.int64) * D
        acc = _multiply(base + n[:, None] * D, x, at_row, is_pair, D, 2 * BLOCK_N, HEIGHT, BLOCK_K, EVEN)
        pdl_launch(PDL)
        if SCALE:
            acc = acc * (tl.load(steps + n) / _INPUT_SCALE)[:, None]
        gate, up = tl.split(tl.permute(tl.reshape(acc, (2, BLOCK_N, HEIGHT)), (1, 2, 0)))
        if GELU:
            inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
            y = gate * tl.sigmoid(2.0 * inner) * up
        else:
            y = gate * tl.sigmoid(gate) * up
        column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        tl.store(
            hidden + pair[None, :].to(tl.int64) * F + column[:, None],
            to_input_format(y, hidden.dtype.element_ty, _INPUT_SCALE if SCALE else 1.0),
            mask=is_pair[None, :] & (column < F)[:, None],
        )


@triton.jit(do_not_specialize=["capacity"])
def down_kernel(
    hidden, w, scale, shared, shared_scale, parts, records, num_tiles, pairs, capacity, D, F,
    NUM_EXPERTS: tl.constexpr, HEIGHT: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EVEN: tl.constexpr, SHARED: tl.constexpr, SCALE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """parts (pairs, D) = down * hidden, in fp32."""
    pdl_wait(PDL)
    tile = tl.program_id(1)
    if tile < tl.load(num_tiles):
        expert, pair, is_pair = _tile_pairs(records, tile, pairs, capacity, HEIGHT)
        base, steps = w + expert.to(tl.int64) * (D * F), scale + expert * D
        if SHARED:  # noqa: SIM102 - known when the kernel is compiled, unlike the inner one
            if expert == NUM_EXPERTS:
                base, steps = shared, shared_scale
        column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        n = tl.minimum(column, D - 1)
        at_row = pair.to(tl.int64) * F
        acc = _multiply(base + n[:, None] * F, hidden, at_row, is_pair, F, BLOCK_N, HEIGHT, BLOCK_K, EVEN)
        pdl_launch(PDL)
        if SCALE:
            acc = acc * (tl.load(steps + n) / _INPUT_SCALE)[:, None]
        target = parts + pair[None, :].to(tl.int64) * D + column[:, None]
        tl.store(target, acc, mask=is_pair[None, :] & (column < D)[:, None])


@triton.jit
def _sum_places(parts, chosen, weights, row, column, is_column, D, PLACES: tl.constexpr, BLOCK: tl.constexpr):
    """The weighted sum of a row's experts in the order of their places; pairs without an expert add nothing."""
    total = tl.zeros((BLOCK,), tl.float32)
    for place in tl.static_range(PLACES):
        pair = row.to(tl.int64) * PLACES + place
        is_used = tl.load(chosen + pair) >= 0
        part = tl.load(parts + pair * D + column, mask=is_column & is_used, other=0.0)
        total += part * tl.load(weights + pair)
    return total


@triton.jit
def add_kernel(
    parts, chosen, weights, out, D, PLACES: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    pdl_wait_and_launch(PDL)
    row, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < D
    total = _sum_places(parts, chosen, weights, row, column, is_column, D, PLACES, BLOCK)
    tl.store(out + row.to(tl.int64) * D + column, total.to(out.dtype.element_ty), mask=is_column)


@triton.jit(do_not_specialize=["num_rows"])
def add_to_stream_kernel(
    parts, chosen, weights, stream, y, squares, gain, D, num_rows, width,
    PLACES: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr, INPUT_SCALE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """stream += the sum of each row's experts; with NORM also the next norm's input and sums of squares, see
    `linears.NormInput`. One program per row and tile of columns."""
    pdl_wait_and_launch(PDL)
    row, tile = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, BLOCK)
    column = tile * width + i
    is_column = (i < width) & (column < D)
    total = _sum_places(parts, chosen, weights, row, column, is_column, D, PLACES, BLOCK)
    dtype = stream.dtype.element_ty
    at = row.to(tl.int64) * D + column
    before = tl.load(stream + at, mask=is_column, other=0.0).to(tl.float32)
    # Rounded before and after the addition as in the eager network.
    sum_ = (total.to(dtype).to(tl.float32) + before).to(dtype)
    tl.store(stream + at, sum_, mask=is_column)
    if NORM:
        wide = sum_.to(tl.float32)
        tl.store(squares + tile * num_rows + row, tl.sum(wide * wide, 0))
        scaled = wide * tl.load(gain + column, mask=is_column, other=0.0).to(tl.float32)
        tl.store(y + at, to_input_format(scaled, y.dtype.element_ty, INPUT_SCALE), mask=is_column)


@triton.jit
def to_half_kernel(x, out, size, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Rows in the input format of quantised experts: fp16 times INPUT_SCALE."""
    pdl_wait_and_launch(PDL)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    wide = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32)
    tl.store(out + at, to_input_format(wide, out.dtype.element_ty, _INPUT_SCALE), mask=at < size)
