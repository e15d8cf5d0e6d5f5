"""All layers in one call, run by every thread of a team: each takes its share of a phase, then they meet.

The phases of a layer: norm and rounding by rows; qkv by columns; rotation and cache writes by rows; attention by rows
and heads; output by columns; norm; gate and up; SwiGLU; down. Canvas rows add their adapter behind each product.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quicksilver.model.native.attend import Keys, Plan, attend
from quicksilver.model.native.compiled import entry, inner
from quicksilver.model.native.product import multiply, share
from quicksilver.model.native.rows import (
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
from quicksilver.model.native.scalar import address_of, meet

QKV, OUT, GATE_UP, DOWN = range(4)
BASE, A, B = range(3)


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
    counters: NDArray[np.int64]  # (16,)


class Batch(NamedTuple):
    plan: Plan
    cos: Floats  # (rows, head_dim)
    sin: Floats
    rows: NDArray[np.int64]  # 0, 1, 2, …
    canvas_rows: NDArray[np.int64]


@inner
def _wait(room: Room, num_threads: int) -> None:
    if num_threads > 1:
        meet(address_of(room.counters), num_threads)


@inner
def _project(matrices: NDArray[np.int64], room: Room, batch: Batch, team: tuple[int, int]) -> None:
    """y = W x for all rows, then y += B (A x) for canvas rows. One call of `multiply`, so that it is compiled once."""
    thread, num_threads = team
    own = _own_narrow(room, thread)
    for part in range(3 if len(batch.canvas_rows) else 1):
        if part == B:
            _wait(room, num_threads)
            for row in batch.canvas_rows:
                round_row(room.low[row], own, row)
        x = own if part == B else room.wide
        rows = batch.rows if part == BASE else batch.canvas_rows
        y = room.low if part == A else room.y
        # The last thread starts with A: it often has less of W.
        place = num_threads - 1 - thread if part == A else thread
        multiply(x, matrices[part], rows, y, share(matrices[part, 3], place, num_threads), np.int64(part == B))
    _wait(room, num_threads)


@inner
def _own_narrow(room: Room, thread: int) -> Rounded:
    first = thread * len(room.x)
    narrow = room.narrow
    return Rounded(narrow.values[first:], narrow.scales[first:], narrow.offsets[first:], narrow.sums[first:])


@inner
def _norm_rows(gain: Floats, eps: float, room: Room, adds: int, team: tuple[int, int]) -> None:
    """Take the last product into the stream, then norm and round it."""
    first, end = share(len(room.x), team[0], team[1])
    for row in range(first, end):
        if adds:
            add_row(room.x[row], room.y[row])
        norm_row(room.x[row], gain, eps, room.normed[row])
        round_row(room.normed[row], room.wide, row)
    _wait(room, team[1])


@inner
def _place_rows(
    network: Network, room: Room, batch: Batch, cache: tuple[Floats, Floats], layer: int, team: tuple[int, int]
) -> None:
    """Bias, head norms, rotation; keys and values into the cache."""
    num_heads, num_kv_heads = network.heads
    head_dim = batch.cos.shape[1]
    first, end = share(len(room.x), team[0], team[1])
    for row in range(first, end):
        y = room.y[row]
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
    _wait(room, team[1])


@inner
def _attend_rows(
    network: Network, room: Room, batch: Batch, cache: tuple[Floats, Floats], team: tuple[int, int]
) -> None:
    num_heads, num_kv_heads = network.heads
    head_dim, num_rows = batch.cos.shape[1], len(room.x)
    group = num_heads // num_kv_heads
    slot_step, row_step = 4 * num_kv_heads * head_dim, 4 * room.y.shape[1]
    for item in range(team[0], num_rows * num_kv_heads, team[1]):
        row, head = item // num_kv_heads, item % num_kv_heads
        own, k_at = 4 * head * head_dim, address_of(room.y) + 4 * (num_heads + head) * head_dim
        keys = Keys(address_of(cache[0]) + own, slot_step, k_at, row_step)
        values = Keys(address_of(cache[1]) + own, slot_step, k_at + slot_step, row_step)
        out = room.mixed[row, head * group * head_dim : (head + 1) * group * head_dim]
        clear_row(out)
        places = (address_of(room.y[row]) + own * group, address_of(out))
        attend(row, (group, head_dim), places, batch.plan, (keys, values), room.scores[team[0]])
    _wait(room, team[1])
    first, end = share(num_rows, team[0], team[1])
    for row in range(first, end):
        round_row(room.mixed[row], room.wide, row)
    _wait(room, team[1])


@inner
def _activate_rows(network: Network, room: Room, team: tuple[int, int]) -> None:
    first, end = share(len(room.x), team[0], team[1])
    for row in range(first, end):
        swiglu_row(room.y[row], network.ffn_dim, room.active[row])
        round_row(room.active[row], room.wide, row)
    _wait(room, team[1])


@entry
def run_layers(network: Network, room: Room, batch: Batch, k: Floats, v: Floats, team: tuple[int, int]) -> None:
    """The stream in `room.x` through all layers; k and v are (layers, slots, kv_heads, head_dim)."""
    for step in range(4 * len(network.matrices)):
        layer, linear = step // 4, step % 4
        if linear in (QKV, GATE_UP):
            _norm_rows(network.gains[layer, linear // 2], network.eps, room, np.int64(step > 0), team)
        elif linear == OUT:
            _attend_rows(network, room, batch, (k[layer], v[layer]), team)
        else:
            _activate_rows(network, room, team)
        _project(network.matrices[layer, linear], room, batch, team)
        if linear == QKV:
            _place_rows(network, room, batch, (k[layer], v[layer]), layer, team)
    first, end = share(len(room.x), team[0], team[1])
    for row in range(first, end):
        add_row(room.x[row], room.y[row])
    _wait(room, team[1])
