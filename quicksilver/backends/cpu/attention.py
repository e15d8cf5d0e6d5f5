"""Attention of one row: the query heads of one KV head over the cached prefix and a span of the batch.

Keys come in order of position, prefix first, so the sums of a row do not depend on how it came into the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quicksilver.backends.cpu.intrinsics import address_of, exp32
from quicksilver.backends.cpu.jit import inner
from quicksilver.backends.cpu.row_ops import Floats
from quicksilver.backends.cpu.vector_ops import make_mix, make_score

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
    """Where the keys (or the values) of one KV head begin, in the cache and in the batch; steps are in bytes."""

    cache: int
    slot_step: int
    batch: int
    row_step: int


Pair = tuple[Keys, Keys]
"""Of keys and of values."""


@inner
def attend(row: int, shape: tuple[int, int], places: tuple[int, int], plan: Plan, keys: Pair, scores: Floats) -> None:
    """`shape` = (query heads of this KV head, head_dim); `places` = addresses of the queries and of the results, which
    begin as zeros; scores (query heads, keys or more) is room to work in."""
    group, head_dim = shape
    q, out = places
    span_len = plan.span_end[row] - plan.span_start[row]
    for i in range(group):
        shares = scores[i, : plan.prefix_end[row] + span_len]
        _walk(row, plan, keys[0], head_dim, (q + 4 * i * head_dim, address_of(shares)), np.int64(0))
        _softmax(shares, np.float32(1) / np.sqrt(np.float32(head_dim)))
        _walk(row, plan, keys[1], head_dim, (out + 4 * i * head_dim, address_of(shares)), np.int64(1))


@inner
def _walk(row: int, plan: Plan, keys: Keys, head_dim: int, places: tuple[int, int], mixes: int) -> None:
    """Over all that the row sees, page by page, then its span: either score keys or mix values."""
    prefix_end, page_size = plan.prefix_end[row], plan.page_size
    vector, scores = places
    num_pages = (prefix_end + page_size - 1) // page_size
    for page in range(num_pages + 1):
        first, count, step = page * page_size, min(page_size, prefix_end - page * page_size), keys.slot_step
        at = keys.cache
        if page < num_pages:
            at += plan.pages[plan.segment[row], page] * page_size * step
        else:
            first, count, step = prefix_end, plan.span_end[row] - plan.span_start[row], keys.row_step
            at = keys.batch + plan.span_start[row] * step
        if mixes:
            _mix_run(scores + 4 * first, at, step, count, vector, head_dim)
        else:
            _score_run(vector, at, step, count, scores + 4 * first, head_dim)


@inner
def _score_run(q: int, keys: int, step: int, count: int, scores: int, head_dim: int) -> None:
    if head_dim == 64:
        _score_64(q, keys, step, count, scores, np.int64(0))
    elif head_dim == 128:
        _score_128(q, keys, step, count, scores, np.int64(0))
    else:
        for start in range(0, 4 * head_dim, 64):
            _score_16(q + start, keys + start, step, count, scores, np.int64(start > 0))


@inner
def _mix_run(shares: int, values: int, step: int, count: int, out: int, head_dim: int) -> None:
    if head_dim == 64:
        _mix_64(shares, values, step, count, out)
    elif head_dim == 128:
        _mix_128(shares, values, step, count, out)
    else:
        for start in range(0, 4 * head_dim, 64):
            _mix_16(shares, values + start, step, count, out + start)


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
