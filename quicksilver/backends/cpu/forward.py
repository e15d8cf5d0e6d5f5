"""All layers of a forward in one compiled call, run by every thread of the pool.

The call is a sequence of phases; in each phase the threads share the chunks of its work (see `work_queue`). A layer has
five steps, each with up to four phases:

1. per row: add the last residual, RMSNorm, quantise; then the qkv matmul
2. per row: bias, head norms, rotation, KV cache write; then attention per row and KV head
3. per row: quantise; then the output matmul
4. per row: add the residual, RMSNorm, quantise; then the gate and up matmul
5. per row: SwiGLU, quantise; then the down matmul

The third phase of a matmul step adds the canvas adapter's B (A x) for canvas rows, the fourth that of row adapters.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quicksilver.backends.cpu.attention import KvHead, RowArrays, RowVectors, attend
from quicksilver.backends.cpu.intrinsics import address_of
from quicksilver.backends.cpu.jit import entry, inner
from quicksilver.backends.cpu.kv_page import HALF_BYTES, Pages, round_to_half, scatter_halves, write_halves
from quicksilver.backends.cpu.matmul import multiply
from quicksilver.backends.cpu.row_ops import (
    Floats,
    QuantisedRows,
    add_row,
    clear_row,
    norm_row,
    quantise_row,
    rotate_head,
    swiglu_row,
)
from quicksilver.backends.cpu.threads import ThreadIndex
from quicksilver.backends.cpu.work_queue import PhaseCounters, chunk_range, claim, complete, num_chunks, wait_for

# The matrices of one linear: the weight W, and A and B of the canvas adapter.
BASE, A, B = range(3)
# The steps of a layer, named by their work per row.
NORM_FOR_QKV, ROTATE, QUANTISE, NORM_FOR_FFN, ACTIVATE = range(5)
_LAYER_STEPS = 5
# Phases of a step: rows; matmul or attention; second half of the canvas adapter; second half of the row adapters.
_STEP_PHASES = 4
# Keys and values of one layer.
Cache = tuple[Pages, Pages]


def num_phases(num_layers: int) -> int:
    return _STEP_PHASES * (_LAYER_STEPS * num_layers + 1)


class NetworkArrays(NamedTuple):
    """Constants of a model. A matrix is a row of five numbers, see `matmul.Matrix`."""

    matrices: NDArray[np.int64]  # (layers, 4 linears, BASE and A and B, 5)
    gains: Floats  # (layers, 2, dim): RMSNorm before attention and before the feed-forward
    head_gains: Floats  # (layers, 2, head_dim): norms of query and key heads; 0 layers without them
    bias: Floats  # (layers, qkv columns); 0 layers without one
    heads: tuple[int, int]  # query and KV heads
    ffn_dim: int
    eps: float


class ForwardBuffers(NamedTuple):
    """Buffers of a forward. Rows are those of the batch. Inputs of a matmul are padded with zeros to whole groups."""

    x: Floats  # (rows, dim): residual stream
    y: Floats  # (rows, most columns): matmul output
    normed: Floats  # (rows, dim)
    attended: Floats  # (rows, q_dim): attention output
    activated: Floats  # (rows, ffn_dim): SwiGLU output
    low_rank: Floats  # (rows, rank): A x
    inputs: QuantisedRows  # (rows, widest input)
    low_rank_inputs: QuantisedRows  # (threads * rows, rank): each thread quantises A x for itself
    row_low_rank: Floats  # the same two for row adapters, with their largest rank
    row_low_rank_inputs: QuantisedRows
    scores: Floats  # (threads, rows of a block times group, keys)
    counters: PhaseCounters  # new for every call


class BatchArrays(NamedTuple):
    """The rows of one forward."""

    plan: RowArrays
    cos: Floats  # (rows, head_dim)
    sin: Floats
    rows: NDArray[np.int64]  # 0, 1, 2, …
    block_ends: NDArray[np.int64]  # (blocks + 1,): where the blocks of rows that attend together begin and end
    canvas_rows: NDArray[np.int64]
    adapters: NDArray[
        np.int64
    ]  # (layers, 4 linears, row adapters, A and B, 5): matrices; no strips where one is absent
    adapter_rows: NDArray[np.int64]  # rows of the first adapter, of the second, …
    adapter_ends: NDArray[np.int64]  # (row adapters + 1,): where the rows of each begin and end


@inner
def _project(
    matrices: NDArray[np.int64],
    adapters: NDArray[np.int64],
    space: ForwardBuffers,
    batch: BatchArrays,
    phase: int,
    thread: ThreadIndex,
) -> None:
    """y = W x for all rows, then y += B (A x) for canvas rows, then the same for the rows of each row adapter.

    All A x are computed in the stage of W x. `multiply` is called in one place, because each call site is inlined and
    compiled separately.
    """
    canvas_inputs = _own_part(space.low_rank_inputs, len(space.x), thread[0])
    row_inputs = _own_part(space.row_low_rank_inputs, len(space.x), thread[0])
    for stage in range(3):
        num_canvas, num_adapted, num_base = _chunks_of_stage(matrices, adapters, batch, stage, thread[1])
        chunks, half, quantised = num_canvas + num_adapted + num_base, np.int64(stage > 0), -1
        if chunks == 0:
            continue
        chunk = claim(space.counters, phase + stage, thread[0], chunks)
        while chunk < chunks:
            matrix, rows, x, y = matrices[BASE], batch.rows, space.inputs, space.y
            if chunk < num_canvas:
                matrix, rows = matrices[A + half], batch.canvas_rows
                strips = chunk_range(matrix[3], chunk, num_canvas)
                if stage == 0:
                    y = space.low_rank
                else:
                    x = canvas_inputs
                    if quantised < 0:
                        _quantise_rows(space.low_rank, rows, x)
                        quantised = 0
            elif chunk < num_canvas + num_adapted:
                group, part, parts = _find_adapter(adapters, half, chunk - num_canvas, thread[1])
                matrix = adapters[group, half]
                rows = batch.adapter_rows[batch.adapter_ends[group] : batch.adapter_ends[group + 1]]
                strips = chunk_range(matrix[3], part, parts)
                if stage == 0:
                    y = space.row_low_rank
                else:
                    x = row_inputs
                    if quantised != group:
                        _quantise_rows(space.row_low_rank, rows, x)
                        quantised = group
            else:
                strips = chunk_range(matrix[3], chunk - num_canvas - num_adapted, num_base)
            multiply(x, matrix, rows, y, strips, half)
            complete(space.counters, phase + stage)
            chunk = claim(space.counters, phase + stage, thread[0], chunks)
        wait_for(space.counters, phase + stage, chunks)


@inner
def _chunks_of_stage(
    matrices: NDArray[np.int64], adapters: NDArray[np.int64], batch: BatchArrays, stage: int, num_threads: int
) -> tuple[int, int, int]:
    """Chunks of the canvas adapter, of the row adapters and of W in one stage of a projection."""
    num_canvas, num_adapted, num_base, half = 0, 0, 0, np.int64(stage > 0)
    if stage < 2 and len(batch.canvas_rows) > 0:
        num_canvas = num_chunks(matrices[A + half, 3], num_threads)
    if stage != 1:
        for group in range(len(adapters)):
            num_adapted += num_chunks(adapters[group, half, 3], num_threads)
    if stage == 0:
        num_base = num_chunks(matrices[BASE, 3], num_threads)
    return num_canvas, num_adapted, num_base


@inner
def _find_adapter(adapters: NDArray[np.int64], half: int, chunk: int, num_threads: int) -> tuple[int, int, int]:
    """The adapter of a chunk, the number of the chunk within it, and its number of chunks."""
    group = 0
    count = num_chunks(adapters[0, half, 3], num_threads)
    while chunk >= count:
        chunk -= count
        group += 1
        count = num_chunks(adapters[group, half, 3], num_threads)
    return group, chunk, count


@inner
def _quantise_rows(low_rank: Floats, rows: NDArray[np.int64], out: QuantisedRows) -> None:
    for row in rows:
        quantise_row(low_rank[row], out, row)


@inner
def _own_part(rows: QuantisedRows, num_rows: int, thread: int) -> QuantisedRows:
    """The part of a buffer for all threads that belongs to this thread."""
    first = thread * num_rows
    return QuantisedRows(rows.values[first:], rows.scales[first:], rows.offsets[first:], rows.sums[first:])


@inner
def _norm_row(network: NetworkArrays, space: ForwardBuffers, step: int, row: int) -> None:
    """Add the last matmul output to the residual stream, then norm and quantise it. After the last layer only add."""
    layer, which = step // _LAYER_STEPS, np.int64(step % _LAYER_STEPS == NORM_FOR_FFN)
    if step > 0:
        add_row(space.x[row], space.y[row])
    if layer < len(network.gains):
        norm_row(space.x[row], network.gains[layer, which], network.eps, space.normed[row])
        quantise_row(space.normed[row], space.inputs, row)


@inner
def _activate_row(network: NetworkArrays, space: ForwardBuffers, row: int) -> None:
    swiglu_row(space.y[row], network.ffn_dim, space.activated[row])
    quantise_row(space.activated[row], space.inputs, row)


@inner
def _rotate_and_cache_row(
    network: NetworkArrays, space: ForwardBuffers, batch: BatchArrays, cache: Cache, layer: int, row: int
) -> None:
    """Bias, head norms and rotation; then write keys and values to the cache.

    They are rounded to fp16 in the batch too: rows that read them there get the same numbers as later rows, which read
    them in the cache."""
    num_heads, num_kv_heads = network.heads
    head_dim, y = batch.cos.shape[1], space.y[row]
    if len(network.bias):
        add_row(y[: network.bias.shape[1]], network.bias[layer])
    for head in range(num_heads + num_kv_heads):
        part = y[head * head_dim : (head + 1) * head_dim]
        if len(network.head_gains):
            norm_row(part, network.head_gains[layer, 0 if head < num_heads else 1], network.eps, part)
        rotate_head(part, batch.cos[row], batch.sin[row])
    keys = address_of(y) + 4 * num_heads * head_dim
    round_to_half(keys, 2 * num_kv_heads * head_dim)
    slot, values = batch.plan.slots[row], keys + 4 * num_kv_heads * head_dim
    if slot >= 0:
        _cache_row(keys, values, head_dim, cache, slot, batch.plan.page_size)


@inner
def _cache_row(keys: int, values: int, head_dim: int, cache: Cache, slot: int, page_size: int) -> None:
    """Write the keys and values of all KV heads to one slot. The layout is that of `kv_page`."""
    page, place = slot // page_size, slot % page_size
    for head in range(cache[0].shape[1]):
        start = 4 * head * head_dim
        key_page, value_page = address_of(cache[0][page, head]), address_of(cache[1][page, head])
        scatter_halves(keys + start, head_dim, key_page + HALF_BYTES * place, HALF_BYTES * page_size)
        write_halves(values + start, head_dim, value_page + HALF_BYTES * place * head_dim)


@inner
def _attend_rows(
    network: NetworkArrays, space: ForwardBuffers, batch: BatchArrays, cache: Cache, phase: int, thread: ThreadIndex
) -> None:
    """A chunk is one KV head of one block of rows. All blocks of a head come before the next head, so that its keys and
    values stay in the second-level cache."""
    num_heads, num_kv_heads = network.heads
    num_blocks = len(batch.block_ends) - 1
    head_dim, chunks = batch.cos.shape[1], num_blocks * num_kv_heads
    group = num_heads // num_kv_heads
    head_bytes, row_stride = HALF_BYTES * cache[0].shape[2], 4 * space.y.shape[1]
    chunk = claim(space.counters, phase, thread[0], chunks)
    while chunk < chunks:
        block, head = chunk % num_blocks, chunk // num_blocks
        first, end = batch.block_ends[block], batch.block_ends[block + 1]
        offset, batch_keys = 4 * head * head_dim, address_of(space.y) + 4 * (num_heads + head) * head_dim
        batch_values, page_stride = batch_keys + 4 * num_kv_heads * head_dim, num_kv_heads * head_bytes
        keys = KvHead(address_of(cache[0]) + head * head_bytes, page_stride, batch_keys, row_stride)
        values = KvHead(address_of(cache[1]) + head * head_bytes, page_stride, batch_values, row_stride)
        for row in range(first, end):
            clear_row(space.attended[row, head * group * head_dim : (head + 1) * group * head_dim])
        queries = RowVectors(address_of(space.y[first]) + offset * group, row_stride)
        results = RowVectors(address_of(space.attended[first]) + offset * group, 4 * space.attended.shape[1])
        scores = space.scores[thread[0]]
        attend((first, end), (group, head_dim), (queries, results), batch.plan, (keys, values), scores)
        complete(space.counters, phase)
        chunk = claim(space.counters, phase, thread[0], chunks)
    wait_for(space.counters, phase, chunks)


@inner
def _prepare_rows(
    network: NetworkArrays, space: ForwardBuffers, batch: BatchArrays, cache: Cache, step: int, thread: ThreadIndex
) -> None:
    """The work per row before the matmul, or the attention, of this step."""
    phase, layer, work = _STEP_PHASES * step, step // _LAYER_STEPS, step % _LAYER_STEPS
    chunks = num_chunks(len(space.x), thread[1])
    chunk = claim(space.counters, phase, thread[0], chunks)
    while chunk < chunks:
        first, end = chunk_range(len(space.x), chunk, chunks)
        for row in range(first, end):
            if work == ROTATE:
                _rotate_and_cache_row(network, space, batch, cache, layer, row)
            elif work == QUANTISE:
                quantise_row(space.attended[row], space.inputs, row)
            elif work == ACTIVATE:
                _activate_row(network, space, row)
            else:
                _norm_row(network, space, step, row)
        complete(space.counters, phase)
        chunk = claim(space.counters, phase, thread[0], chunks)
    wait_for(space.counters, phase, chunks)


@entry
def run_layers(
    network: NetworkArrays, space: ForwardBuffers, batch: BatchArrays, k: Pages, v: Pages, thread: ThreadIndex
) -> None:
    """Run the residual stream in `space.x` through all layers; k and v are those of all layers.

    Each function has one call site, because every call site is inlined and compiled separately.
    """
    num_layers = len(network.matrices)
    for step in range(_LAYER_STEPS * num_layers + 1):
        layer, work = min(step // _LAYER_STEPS, num_layers - 1), step % _LAYER_STEPS
        cache = (k[layer], v[layer])
        _prepare_rows(network, space, batch, cache, step, thread)
        if work == ROTATE:
            _attend_rows(network, space, batch, cache, _STEP_PHASES * step + 1, thread)
        elif step < _LAYER_STEPS * num_layers:
            linear = work - np.int64(work > ROTATE)
            matrices, adapters = network.matrices[layer, linear], batch.adapters[layer, linear]
            _project(matrices, adapters, space, batch, _STEP_PHASES * step + 1, thread)
