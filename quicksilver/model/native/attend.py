"""Attention of one row: the query heads of one KV head over the cached prefix and a span of the batch.

Keys come in order of position, prefix first, so the sums of a row do not depend on how it came into the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quicksilver.model.native.compiled import inner
from quicksilver.model.native.rows import Floats
from quicksilver.model.native.scalar import exp32
from quicksilver.model.native.vectors import make_mix, make_score

_score_16, _score_64, _score_128 = make_score(1), make_score(4), make_score(8)
_mix_16, _mix_64, _mix_128 = make_mix(1), make_mix(4), make_mix(8)


class Plan(NamedTuple):
    """`RowPlan` as arrays: what every row reads and writes, and the pages of its sequence."""

    slots: NDArray[np.int64]
    prefix_end: NDArray[np.int64]
    span_start: NDArray[np.int64]
    span_end: NDArray[np.int64]
    segment: NDArray[np.int64]
    pages: NDArray[np.int64]  # (segments, most pages)
    page_size: int


class Keys(NamedTuple):
    """Where the keys and values of one layer lie: by slot in the cache, by row in the batch."""

    k: Floats  # (slots, kv_heads, head_dim)
    v: Floats
    batch: Floats  # (rows, columns): queries, keys, values, a head behind the other
    k_at: int
    """Column of this head's keys in `batch`."""
    v_at: int


@inner
def attend(row: int, head: int, q: Floats, plan: Plan, keys: Keys, scores: Floats, out: Floats) -> None:
    """q and out (group, head_dim): the query heads of KV head `head`. `scores` (group, keys or more) is room to work."""
    head_dim = q.shape[1]
    prefix_end, page_size = plan.prefix_end[row], plan.page_size
    pages = plan.pages[plan.segment[row]]
    span_start, span_len = plan.span_start[row], plan.span_end[row] - plan.span_start[row]
    cached, fresh = (keys.k.strides[0], head_dim), (keys.batch.strides[0], head_dim)
    for page in range((prefix_end + page_size - 1) // page_size):
        run = (page * page_size, min(page_size, prefix_end - page * page_size))
        _score_run(q, keys.k[pages[page] * page_size, head].ctypes.data, cached, run, scores)
    if span_len > 0:
        _score_run(q, keys.batch[span_start, keys.k_at :].ctypes.data, fresh, (prefix_end, span_len), scores)
    for i in range(len(q)):
        _softmax(scores[i, : prefix_end + span_len], np.float32(1) / np.sqrt(np.float32(head_dim)))
    out[:] = 0
    for page in range((prefix_end + page_size - 1) // page_size):
        run = (page * page_size, min(page_size, prefix_end - page * page_size))
        _mix_run(scores, keys.v[pages[page] * page_size, head].ctypes.data, cached, run, out)
    if span_len > 0:
        _mix_run(scores, keys.batch[span_start, keys.v_at :].ctypes.data, fresh, (prefix_end, span_len), out)


@inner
def _score_run(q: Floats, keys: int, shape: tuple[int, int], run: tuple[int, int], scores: Floats) -> None:
    """Keys `run` = (first, count), of which the first lies at address `keys`; shape is (step in bytes, head_dim)."""
    step, head_dim = shape
    first, count = run
    for i in range(len(q)):
        query, target = q[i].ctypes.data, scores[i].ctypes.data + 4 * first
        if head_dim == 64:
            _score_64(query, keys, step, count, target)
        elif head_dim == 128:
            _score_128(query, keys, step, count, target)
        else:
            _score_parts(query, keys, shape, count, scores[i, first : first + count])


@inner
def _score_parts(q: int, keys: int, shape: tuple[int, int], count: int, scores: Floats) -> None:
    """Any multiple of 16, in parts."""
    room = np.empty(count, np.float32)
    scores[:] = 0
    for start in range(0, 4 * shape[1], 64):
        _score_16(q + start, keys + start, shape[0], count, room.ctypes.data)
        scores += room


@inner
def _mix_run(shares: Floats, values: int, shape: tuple[int, int], run: tuple[int, int], out: Floats) -> None:
    step, head_dim = shape
    first, count = run
    for i in range(len(out)):
        share, target = shares[i].ctypes.data + 4 * first, out[i].ctypes.data
        if head_dim == 64:
            _mix_64(share, values, step, count, target)
        elif head_dim == 128:
            _mix_128(share, values, step, count, target)
        else:
            for start in range(0, 4 * head_dim, 64):
                _mix_16(share, values + start, step, count, target + start)


@inner
def _softmax(scores: Floats, scale: float) -> None:
    largest, total = np.float32(-np.inf), np.float32(0)
    for i in range(len(scores)):
        largest = scores[i] if scores[i] > largest else largest
        total += scores[i] * np.float32(0)
    for i in range(len(scores)):
        scores[i] = exp32((scores[i] - largest) * scale)
    for i in range(len(scores)):
        total += scores[i]
    share = np.float32(1) / total
    for i in range(len(scores)):
        scores[i] *= share
