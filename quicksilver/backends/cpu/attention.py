"""Attention of a block of rows: the query heads of one KV head over the cached prefix and a span of the batch.

All rows of a block have one segment (sequence), so a page in the first-level cache serves all. Their prefixes may end
at different positions. A row visits its keys in order of position, prefix first, so its reduction order depends neither
on the block nor on the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quicksilver.backends.cpu.intrinsics import address_of, exp32
from quicksilver.backends.cpu.jit import inner
from quicksilver.backends.cpu.kv_page import HALF_BYTES, make_page_scores, span_scores
from quicksilver.backends.cpu.llvm import F16, LANES
from quicksilver.backends.cpu.row_ops import Floats
from quicksilver.backends.cpu.vector_ops import make_value_sum, max_of, sum_of

# For keys and values of the batch, which are floats; one query head at a time.
_sum_16, _sum_64, _sum_128 = make_value_sum(1), make_value_sum(4), make_value_sum(8)
# For pages of the cache. Several query heads at once share the conversion of a number to a float, and their independent
# sums keep the multipliers busy.
_page_scores, _page_scores_of_3 = make_page_scores(1), make_page_scores(3)
_page_sum_64_of_3, _page_sum_128_of_2 = make_value_sum(4, 3, F16), make_value_sum(8, 2, F16)
_page_sum_16, _page_sum_64 = make_value_sum(1, kind=F16), make_value_sum(4, kind=F16)
# Pages between the one that is read and the one that is prefetched. A page is read faster than memory answers.
_PAGES_AHEAD = 6


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

    cache: int  # in the first page
    page_stride: int
    batch: int
    row_stride: int


class RowVectors(NamedTuple):
    """The address of the query heads, or of their results, in the first row of a block, and bytes between rows."""

    first: int
    stride: int


@inner
def attend(
    block: tuple[int, int],
    shape: tuple[int, int],
    vectors: tuple[RowVectors, RowVectors],
    rows: RowArrays,
    heads: tuple[KvHead, KvHead],
    scores: Floats,
) -> None:
    """The attention of a block of rows for one KV head.

    - block: first row and end; all rows have one segment
    - shape: (query heads of this KV head, head_dim)
    - vectors: the queries and the results of the first row; the results must be zero on entry
    - heads: keys and values
    - scores: (rows of the block times query heads, keys or more), workspace
    """
    (first, end), (group, head_dim) = block, shape
    _visit(block, rows, heads, shape, vectors[0], scores, np.int64(0))
    for row in range(first, end):
        num_keys = rows.prefix_end[row] + rows.span_end[row] - rows.span_start[row]
        for i in range((row - first) * group, (row - first + 1) * group):
            _softmax(scores[i, :num_keys], np.float32(1) / np.sqrt(np.float32(head_dim)))
    _visit(block, rows, heads, shape, vectors[1], scores, np.int64(1))


@inner
def _visit(
    block: tuple[int, int],
    rows: RowArrays,
    heads: tuple[KvHead, KvHead],
    shape: tuple[int, int],
    vectors: RowVectors,
    scores: Floats,
    is_value: int,
) -> None:
    """Visit what the rows attend to, page by page, then their spans: score keys, or sum values if `is_value`.

    All rows and query heads read a page before the next page is visited, so that it stays in the first-level cache.
    """
    (block_start, block_end), group = block, shape[0]
    page_size, score_stride = rows.page_size, 4 * scores.shape[1]
    head, pages = heads[is_value], rows.pages[rows.segment[block_start]]
    num_pages = (_longest_prefix(rows, block) + page_size - 1) // page_size
    for page in range(num_pages + 1):
        start, ahead = head.cache, head.cache
        if page < num_pages:
            start += pages[page] * head.page_stride
            ahead = _page_ahead(pages[:num_pages], page, heads, is_value)
        for row in range(block_start, block_end):
            vector = vectors.first + (row - block_start) * vectors.stride
            row_scores = address_of(scores) + (row - block_start) * group * score_stride
            if page == num_pages:
                row_scores += 4 * rows.prefix_end[row]
                count = rows.span_end[row] - rows.span_start[row]
                start = head.batch + rows.span_start[row] * head.row_stride
                _visit_span(start, head.row_stride, count, shape, vector, (row_scores, score_stride), is_value)
                continue
            count = min(page_size, rows.prefix_end[row] - page * page_size)
            row_scores += 4 * page * page_size
            if is_value:
                _sum_page(start, count, shape, vector, (row_scores, score_stride), ahead)
            else:
                _score_page(start, count, page_size, shape, vector, (row_scores, score_stride), ahead)
            ahead = start  # is in the cache already


@inner
def _page_ahead(pages: NDArray[np.int64], page: int, heads: tuple[KvHead, KvHead], is_value: int) -> int:
    """The address of the page to prefetch while `page` is read. The values follow the keys. Hardware prefetchers do not
    follow from page to page."""
    following = page + _PAGES_AHEAD
    if following < len(pages):
        return heads[is_value].cache + pages[following] * heads[is_value].page_stride
    if is_value == 0 and following - len(pages) < len(pages):
        return heads[1].cache + pages[following - len(pages)] * heads[1].page_stride
    return heads[is_value].cache + pages[page] * heads[is_value].page_stride


@inner
def _score_page(
    page: int, count: int, page_size: int, shape: tuple[int, int], q: int, scores: tuple[int, int], ahead: int
) -> None:
    """Scores of the first `count` keys of a page. Up to 15 more scores are written after them: they are overwritten by
    the scores that follow, or not read."""
    (group, head_dim), dim_stride = shape, HALF_BYTES * page_size
    stride, q_stride = scores[1], 4 * head_dim
    for first in range(0, count, LANES):
        keys, out, fetch, i = page + HALF_BYTES * first, scores[0] + 4 * first, ahead + HALF_BYTES * first, 0
        while i + 3 <= group:
            _page_scores_of_3(q + i * q_stride, q_stride, keys, dim_stride, head_dim, out + i * stride, stride, fetch)
            fetch, i = keys, i + 3
        while i < group:
            _page_scores(q + i * q_stride, q_stride, keys, dim_stride, head_dim, out + i * stride, stride, fetch)
            fetch, i = keys, i + 1


@inner
def _sum_page(page: int, count: int, shape: tuple[int, int], out: int, weights: tuple[int, int], ahead: int) -> None:
    """Add the weighted sums of the first `count` values of a page to the results of all query heads."""
    group, head_dim = shape
    stride, i = HALF_BYTES * head_dim, 0
    while i < group and count > 0:
        result, own_weights = out + 4 * i * head_dim, weights[0] + i * weights[1]
        if head_dim == 64 and i + 3 <= group:
            _page_sum_64_of_3(own_weights, weights[1], page, stride, count, result, ahead)
            i += 3
        elif head_dim == 128 and i + 2 <= group:
            _page_sum_128_of_2(own_weights, weights[1], page, stride, count, result, ahead)
            i += 2
        else:
            for dim in range(0, head_dim, 64 if head_dim % 64 == 0 else LANES):
                place, part = HALF_BYTES * dim, result + 4 * dim
                if head_dim % 64 == 0:
                    _page_sum_64(own_weights, np.int64(0), page + place, stride, count, part, ahead + place)
                else:
                    _page_sum_16(own_weights, np.int64(0), page + place, stride, count, part, ahead + place)
            i += 1
        ahead = page


@inner
def _visit_span(
    start: int,
    stride: int,
    count: int,
    shape: tuple[int, int],
    vector: int,
    scores: tuple[int, int],
    is_value: int,
) -> None:
    """Score keys of the batch, or sum its values if `is_value`, for all query heads of a row."""
    group, head_dim = shape
    if count > 0:
        for i in range(group):
            if is_value:
                _sum_values(scores[0] + i * scores[1], start, stride, count, vector + 4 * i * head_dim, head_dim)
            else:
                span_scores(vector + 4 * i * head_dim, start, stride, count, head_dim, scores[0] + i * scores[1])


@inner
def _longest_prefix(rows: RowArrays, block: tuple[int, int]) -> int:
    longest = 0
    for row in range(block[0], block[1]):
        longest = max(longest, rows.prefix_end[row])
    return longest


@inner
def _sum_values(weights: int, values: int, stride: int, count: int, out: int, head_dim: int) -> None:
    if head_dim == 64:
        _sum_64(weights, np.int64(0), values, stride, count, out, values)
    elif head_dim == 128:
        _sum_128(weights, np.int64(0), values, stride, count, out, values)
    else:
        for start in range(0, 4 * head_dim, 64):
            _sum_16(weights, np.int64(0), values + start, stride, count, out + start, values + start)


@inner
def _softmax(scores: Floats, scale: float) -> None:
    """In place. A NaN score makes all weights NaN; an infinite one too."""
    largest = max_of(address_of(scores), np.int64(len(scores)))
    for i in range(len(scores)):
        scores[i] = exp32((scores[i] - largest) * scale) + scores[i] * np.float32(0)
    factor = np.float32(1) / sum_of(address_of(scores), np.int64(len(scores)))
    for i in range(len(scores)):
        scores[i] *= factor
