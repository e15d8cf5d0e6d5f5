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
from quicksilver.backends.cpu.row_ops import Floats
from quicksilver.backends.cpu.vector_ops import make_key_scores, make_value_sum, max_of, prefetch_vectors, sum_of

_scores_16, _scores_64, _scores_128 = make_key_scores(1), make_key_scores(4), make_key_scores(8)
_sum_16, _sum_64, _sum_128 = make_value_sum(1), make_value_sum(4), make_value_sum(8)
# Three query heads at once: one head of dimension 64 has too few independent sums to keep the multipliers busy.
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
    _visit(block, rows, heads[0], shape, vectors[0], scores, np.int64(0))
    _prefetch_page(rows, block, np.int64(0), heads[1], head_dim)
    for row in range(first, end):
        num_keys = rows.prefix_end[row] + rows.span_end[row] - rows.span_start[row]
        for i in range((row - first) * group, (row - first + 1) * group):
            _softmax(scores[i, :num_keys], np.float32(1) / np.sqrt(np.float32(head_dim)))
    _visit(block, rows, heads[1], shape, vectors[1], scores, np.int64(1))


@inner
def _visit(
    block: tuple[int, int],
    rows: RowArrays,
    head: KvHead,
    shape: tuple[int, int],
    vectors: RowVectors,
    scores: Floats,
    is_value: int,
) -> None:
    """Visit what the rows attend to, page by page, then their spans: score keys, or sum values if `is_value`.

    All rows and query heads read a page before the next page is visited, so that it stays in the first-level cache.
    """
    (block_start, block_end), (group, head_dim) = block, shape
    page_size, score_stride = rows.page_size, 4 * scores.shape[1]
    num_pages = (_longest_prefix(rows, block) + page_size - 1) // page_size
    for page in range(num_pages + 1):
        start = head.cache
        if page < num_pages:
            start += rows.pages[rows.segment[block_start], page] * page_size * head.slot_stride
        _prefetch_page(rows, block, page + 1, head, head_dim)
        for row in range(block_start, block_end):
            first, stride = page * page_size, head.slot_stride
            count = min(page_size, rows.prefix_end[row] - first)
            if page == num_pages:
                first, count = rows.prefix_end[row], rows.span_end[row] - rows.span_start[row]
                stride = head.row_stride
                start = head.batch + rows.span_start[row] * stride
            if count <= 0:
                continue
            row_vector = vectors.first + (row - block_start) * vectors.stride
            row_scores = address_of(scores) + (row - block_start) * group * score_stride + 4 * first
            for i in range(group):
                vector, weights = row_vector + 4 * i * head_dim, row_scores + i * score_stride
                is_triple = head_dim == 64 and i // 3 * 3 + 3 <= group
                if not is_value:
                    _score_keys(vector, start, stride, count, weights, head_dim)
                elif not is_triple:
                    _sum_values(weights, start, stride, count, vector, head_dim)
                elif i % 3 == 0:
                    _sum_64_of_3(weights, score_stride, start, stride, count, vector)


@inner
def _longest_prefix(rows: RowArrays, block: tuple[int, int]) -> int:
    longest = 0
    for row in range(block[0], block[1]):
        longest = max(longest, rows.prefix_end[row])
    return longest


@inner
def _prefetch_page(rows: RowArrays, block: tuple[int, int], page: int, head: KvHead, head_dim: int) -> None:
    """Prefetch the keys or values of one page of the longest prefix, if it has that page. Hardware prefetchers do not
    follow from page to page."""
    count = min(rows.page_size, _longest_prefix(rows, block) - page * rows.page_size)
    if count > 0:
        start = head.cache + rows.pages[rows.segment[block[0]], page] * rows.page_size * head.slot_stride
        prefetch_vectors(start, head.slot_stride, count, 4 * head_dim)


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
    """In place. A NaN score makes all weights NaN; an infinite one too."""
    largest = max_of(address_of(scores), np.int64(len(scores)))
    for i in range(len(scores)):
        scores[i] = exp32((scores[i] - largest) * scale) + scores[i] * np.float32(0)
    factor = np.float32(1) / sum_of(address_of(scores), np.int64(len(scores)))
    for i in range(len(scores)):
        scores[i] *= factor
