"""All layers in one call, run by every thread of a team: they share the pieces of a phase, then comes the next.

The phases of a layer: norm and rounding by rows; qkv by columns; rotation and cache writes by rows; attention by rows
and heads; rounding; output; norm; gate and up; SwiGLU; down. Canvas rows add their adapter behind each product.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quicksilver.backends.cpu.attention import Keys, Plan, attend
from quicksilver.backends.cpu.intrinsics import address_of
from quicksilver.backends.cpu.jit import entry, inner
from quicksilver.backends.cpu.matmul import multiply
from quicksilver.backends.cpu.row_ops import (
    Floats,
    Rounded,
    add_row,
    clear_row,
    copy_row,
    norm_row,
    rotate_head,
    round_row,
    swiglu_row,
)
from quicksilver.backends.cpu.threads import Place
from quicksilver.backends.cpu.work_queue import Turns, finish, num_pieces, share, take, wait

BASE, A, B = range(3)
NORM_FOR_QKV, PLACE, ROUND, NORM_FOR_FFN, ACTIVATE = range(5)
"""What rows need before qkv, attention, output, gate and up, and down: the five steps of a layer."""
_LAYER_STEPS = 5
_STEP_PHASES = 3
"""Rows; product or attention; the adapter's second half."""
Cache = tuple[Floats, Floats]


def num_phases(num_layers: int) -> int:
    return _STEP_PHASES * (_LAYER_STEPS * num_layers + 1)


class Network(NamedTuple):
    """Constants of a model. Matrices are rows of five numbers, see `product.Matrix`."""

    matrices: NDArray[np.int64]  # (layers, 4 linears, base and A and B, 5)
    gains: Floats  # (layers, 2, dim): before attention, before feed-forward
    head_gains: Floats  # (layers, 2, head_dim): of queries and keys; (0, 2, head_dim) where there are none
    bias: Floats  # (layers, qkv columns); (0, qkv columns) where there is none
    heads: tuple[int, int]  # query and KV heads
    ffn_dim: int
    eps: float


class Room(NamedTuple):
    """Where a forward works. Rows are those of the batch throughout."""

    x: Floats  # (rows, dim): the stream
    y: Floats  # (rows, most columns): what a product leaves
    normed: Floats  # (rows, dim), like the next two in whole groups, with zeros behind
    mixed: Floats  # (rows, q_dim): what attention leaves
    active: Floats  # (rows, ffn_dim): what SwiGLU leaves
    low: Floats  # (rows, rank): A x
    wide: Rounded  # (rows, widest input)
    narrow: Rounded  # (threads * rows, rank): every thread rounds for itself
    scores: Floats  # (threads, group, keys)
    turns: Turns  # new for every call


class Batch(NamedTuple):
    plan: Plan
    cos: Floats  # (rows, head_dim)
    sin: Floats
    rows: NDArray[np.int64]  # 0, 1, 2, …
    canvas_rows: NDArray[np.int64]


@inner
def _project(matrices: NDArray[np.int64], room: Room, batch: Batch, phase: int, team: Place) -> None:
    """y = W x for all rows and A x for canvas rows, then y += B (A x) for these. One call of `multiply`, so that it is
    compiled once."""
    own = _own_narrow(room, team[0])
    for stage in range(2 if len(batch.canvas_rows) else 1):
        main = B if stage else BASE
        pieces = num_pieces(matrices[main, 3], team[1])
        low_pieces = num_pieces(matrices[A, 3], team[1]) if stage == 0 and len(batch.canvas_rows) else 0
        has_rounded = False
        piece = take(room.turns, phase + stage)
        while piece < low_pieces + pieces:
            part = A if piece < low_pieces else main
            if part == B and not has_rounded:
                for row in batch.canvas_rows:
                    round_row(room.low[row], own, row)
                has_rounded = True
            strips = (
                share(matrices[A, 3], piece, low_pieces) if part == A
                else share(matrices[part, 3], piece - low_pieces, pieces)
            )  # fmt: skip
            rows = batch.rows if part == BASE else batch.canvas_rows
            x, y = own if part == B else room.wide, room.low if part == A else room.y
            multiply(x, matrices[part], rows, y, strips, np.int64(part == B))
            finish(room.turns, phase + stage)
            piece = take(room.turns, phase + stage)
        wait(room.turns, phase + stage, low_pieces + pieces)


@inner
def _own_narrow(room: Room, thread: int) -> Rounded:
    first = thread * len(room.x)
    narrow = room.narrow
    return Rounded(narrow.values[first:], narrow.scales[first:], narrow.offsets[first:], narrow.sums[first:])


@inner
def _norm_row(network: Network, room: Room, step: int, row: int) -> None:
    """Take the last product into the stream, then norm and round it. Behind the last layer there is no norm here."""
    layer, which = step // _LAYER_STEPS, np.int64(step % _LAYER_STEPS == NORM_FOR_FFN)
    if step > 0:
        add_row(room.x[row], room.y[row])
    if layer < len(network.gains):
        norm_row(room.x[row], network.gains[layer, which], network.eps, room.normed[row])
        round_row(room.normed[row], room.wide, row)


@inner
def _activate_row(network: Network, room: Room, row: int) -> None:
    swiglu_row(room.y[row], network.ffn_dim, room.active[row])
    round_row(room.active[row], room.wide, row)


@inner
def _place_row(network: Network, room: Room, batch: Batch, cache: Cache, layer: int, row: int) -> None:
    """Bias, head norms, rotation; keys and values into the cache."""
    num_heads, num_kv_heads = network.heads
    head_dim, y = batch.cos.shape[1], room.y[row]
    if len(network.bias):
        add_row(y[: network.bias.shape[1]], network.bias[layer])
    for head in range(num_heads + num_kv_heads):
        part = y[head * head_dim : (head + 1) * head_dim]
        if len(network.head_gains):
            norm_row(part, network.head_gains[layer, 0 if head < num_heads else 1], network.eps, part)
        rotate_head(part, batch.cos[row], batch.sin[row])
    slot = batch.plan.slots[row]
    if slot >= 0:
        for head in range(num_kv_heads):
            start = (num_heads + head) * head_dim
            copy_row(y[start : start + head_dim], cache[0][slot, head])
            start += num_kv_heads * head_dim
            copy_row(y[start : start + head_dim], cache[1][slot, head])


@inner
def _attend_rows(network: Network, room: Room, batch: Batch, cache: Cache, phase: int, team: Place) -> None:
    num_heads, num_kv_heads = network.heads
    head_dim, num_items = batch.cos.shape[1], len(room.x) * num_kv_heads
    group = num_heads // num_kv_heads
    slot_step, row_step = 4 * num_kv_heads * head_dim, 4 * room.y.shape[1]
    item = take(room.turns, phase)
    while item < num_items:
        row, head = item // num_kv_heads, item % num_kv_heads
        own, k_at = 4 * head * head_dim, address_of(room.y) + 4 * (num_heads + head) * head_dim
        keys = Keys(address_of(cache[0]) + own, slot_step, k_at, row_step)
        values = Keys(address_of(cache[1]) + own, slot_step, k_at + slot_step, row_step)
        out = room.mixed[row, head * group * head_dim : (head + 1) * group * head_dim]
        clear_row(out)
        places = (address_of(room.y[row]) + own * group, address_of(out))
        attend(row, (group, head_dim), places, batch.plan, (keys, values), room.scores[team[0]])
        finish(room.turns, phase)
        item = take(room.turns, phase)
    wait(room.turns, phase, num_items)


@inner
def _prepare_rows(network: Network, room: Room, batch: Batch, cache: Cache, step: int, num_threads: int) -> None:
    """What rows need before the product, or the attention, of this step."""
    phase, layer, work = _STEP_PHASES * step, step // _LAYER_STEPS, step % _LAYER_STEPS
    pieces = num_pieces(len(room.x), num_threads)
    piece = take(room.turns, phase)
    while piece < pieces:
        first, end = share(len(room.x), piece, pieces)
        for row in range(first, end):
            if work == PLACE:
                _place_row(network, room, batch, cache, layer, row)
            elif work == ROUND:
                round_row(room.mixed[row], room.wide, row)
            elif work == ACTIVATE:
                _activate_row(network, room, row)
            else:
                _norm_row(network, room, step, row)
        finish(room.turns, phase)
        piece = take(room.turns, phase)
    wait(room.turns, phase, pieces)


@entry
def run_layers(network: Network, room: Room, batch: Batch, k: Floats, v: Floats, team: Place) -> None:
    """The stream in `room.x` through all layers; k and v are (layers, slots, kv_heads, head_dim). Each part is called
    from one place only, since every place would be compiled for itself."""
    num_layers = len(network.matrices)
    for step in range(_LAYER_STEPS * num_layers + 1):
        layer, work = min(step // _LAYER_STEPS, num_layers - 1), step % _LAYER_STEPS
        cache = (k[layer], v[layer])
        _prepare_rows(network, room, batch, cache, step, team[1])
        if work == PLACE:
            _attend_rows(network, room, batch, cache, _STEP_PHASES * step + 1, team)
        elif step < _LAYER_STEPS * num_layers:
            linear = work - np.int64(work > PLACE)
            _project(network.matrices[layer, linear], room, batch, _STEP_PHASES * step + 1, team)
