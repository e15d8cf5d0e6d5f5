"""Attention of one row: the query heads of one KV head over the cached prefix and a span of the batch.

Keys are visited in order of position, prefix first, so the reduction order of a row does not depend on the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quicksilver.backends.cpu.intrinsics import address_of, exp32
from quicksilver.backends.cpu.jit import inner
from quicksilver.backends.cpu.row_ops import Floats
from quicksilver.backends.cpu.vector_ops import make_key_scores, make_value_sum

_scores_16, _scores_64, _scores_128 = make_key_scores(1), make_key_scores(4), make_key_scores(8)
_sum_16, _sum_64, _sum_128 = make_value_sum(1), make_value_sum(4), make_value_sum(8)
# One head of 64 has too few sums to keep the multipliers busy.
_sum_64_of_3 = make_value_sum(4, num_heads=3)


class RowArrays(NamedTuple):
    """`RowPlan` as numpy arrays: what every row reads and writes, and the pages of its sequence."""

    slots: NDArray[np.int64]
    prefix_end: NDArray[np.int64]
    span_start: NDArray[np.int64]
    span_end: NDArray[np.int64]
    segment: NDArray[np.int64]
    pages: NDArray[np.int64]  # (segments, largest number of pages)
    page_size: int


class KvHead(NamedTuple):
    """Addresses of the keys, or of the values, of one KV head in the cache and in the batch; strides are in bytes."""

    cache: int
    slot_stride: int
    batch: int
    row_stride: int


@inner
def attend(
    row: int,
    shape: tuple[int, int],
    addresses: tuple[int, int],
    rows: RowArrays,
    heads: tuple[KvHead, KvHead],
    scores: Floats,
) -> None:
    """The attention of one row for one KV head.

    - shape: (query heads of this KV head, head_dim)
    - addresses: of the queries and of the results, which must be zero on entry
    - heads: keys and values
    - scores: (query heads, keys or more), workspace
    """
    group, head_dim = shape
    num_keys = rows.prefix_end[row] + rows.span_end[row] - rows.span_start[row]
    _visit(row, rows, heads[0], shape, (addresses[0], address_of(scores)), (4 * scores.shape[1], np.int64(0)))
    for i in range(group):
        _softmax(scores[i, :num_keys], np.float32(1) / np.sqrt(np.float32(head_dim)))
    _visit(row, rows, heads[1], shape, (addresses[1], address_of(scores)), (4 * scores.shape[1], np.int64(1)))


@inner
def _visit(
    row: int,
    rows: RowArrays,
    head: KvHead,
    shape: tuple[int, int],
    addresses: tuple[int, int],
    options: tuple[int, int],
) -> None:
    """Visit everything that the row attends to, page by page, then its span: score keys, or sum values.

    All query heads read a page before the next page is visited, so that the page stays in the first-level cache.

    - addresses: of the queries or results, and of the scores
    - options: (bytes between the scores of two heads, whether values are summed)
    """
    prefix_end, page_size = rows.prefix_end[row], rows.page_size
    (group, head_dim), (score_stride, is_value) = shape, options
    num_pages = (prefix_end + page_size - 1) // page_size
    for page in range(num_pages + 1):
        first, count, stride = page * page_size, min(page_size, prefix_end - page * page_size), head.slot_stride
        start = head.cache
        if page < num_pages:
            start += rows.pages[rows.segment[row], page] * page_size * stride
        else:
            first, count, stride = prefix_end, rows.span_end[row] - rows.span_start[row], head.row_stride
            start = head.batch + rows.span_start[row] * stride
        for i in range(group):
            vector, scores = addresses[0] + 4 * i * head_dim, addresses[1] + i * score_stride + 4 * first
            is_triple = head_dim == 64 and i // 3 * 3 + 3 <= group
            if not is_value:
                _score_keys(vector, start, stride, count, scores, head_dim)
            elif not is_triple:
                _sum_values(scores, start, stride, count, vector, head_dim)
            elif i % 3 == 0:
                _sum_64_of_3(scores, score_stride, start, stride, count, vector)


@inner
def _score_keys(q: int, keys: int, stride: int, count: int, scores: int, head_dim: int) -> None:
    if head_dim == 64:
        _scores_64(q, keys, stride, count, scores, np.int64(0))
    elif head_dim == 128:
        _scores_128(q, keys, stride, count, scores, np.int64(0))
    else:
        for start in range(0, 4 * head_dim, 64):
            _scores_16(q + start, keys + start, stride, count, scores, np.int64(start > 0))


@inner
def _sum_values(weights: int, values: int, stride: int, count: int, out: int, head_dim: int) -> None:
    if head_dim == 64:
        _sum_64(weights, np.int64(0), values, stride, count, out)
    elif head_dim == 128:
        _sum_128(weights, np.int64(0), values, stride, count, out)
    else:
        for start in range(0, 4 * head_dim, 64):
            _sum_16(weights, np.int64(0), values + start, stride, count, out + start)


@inner
def _softmax(scores: Floats, scale: float) -> None:
    """In place. A NaN score makes all weights NaN: `total` starts with the sum of score * 0."""
    largest, total = np.float32(-np.inf), np.float32(0)
    for i in range(len(scores)):
        largest = scores[i] if scores[i] > largest else largest
        total += scores[i] * np.float32(0)
    for i in range(len(scores)):
        scores[i] = exp32((scores[i] - largest) * scale)
    for i in range(len(scores)):
        total += scores[i]
    factor = np.float32(1) / total
    for i in range(len(scores)):
        scores[i] *= factor
