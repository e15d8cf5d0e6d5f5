"""The KV cache of the compiled kernels: the layout of a page in fp16, and the loops that write and read it.

A page holds the keys of each KV head as (head_dim, page_size) and the values as (page_size, head_dim). One vector then
has one number of 16 keys, so the scores of 16 keys need no sums across lanes, and the numbers of one head are
contiguous in memory. Sums have a fixed order, which depends neither on the other heads of a call nor on other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from quicksilver.backends.cpu.llvm import (
    F16,
    F32,
    FLOATS,
    I32,
    LANES,
    ZEROS,
    Builder,
    Value,
    call,
    const_i64,
    fma,
    for_each,
    load,
    prefetch,
    splat,
    store,
)  # fmt: skip
from quicksilver.backends.cpu.support import has_vnni
from quicksilver.model.attention import PagedCache

# (layers, pages, kv_heads, page_size * head_dim): keys, or values, in fp16. numba has no fp16 on CPUs, so they are
# passed as integers of the same size.
Pages = NDArray[np.int16]
HALF_BYTES = 2
_HALVES = ir.VectorType(F16, LANES)
# Independent sums per head: enough of them hide the latency of a multiply-add. Fewer registers hold fewer.
_PARTIAL_SUMS = 4 if has_vnni() else 2
_UNROLL = 8  # dimensions; divides every supported head_dim


def pages_of(cache: PagedCache) -> tuple[Pages, Pages]:
    """The memory of the cache in the layout of this module."""
    layers, slots, kv_heads, head_dim = cache.k.shape
    shape = (layers, slots // cache.page_size, kv_heads, cache.page_size * head_dim)
    keys, values = (part.numpy().view(np.int16).reshape(shape) for part in (cache.k, cache.v))
    return keys, values


@intrinsic
def round_to_half(context: Any, x: Any, count: Any) -> Any:
    """Round `count` floats at `x`, a multiple of 16, to numbers that fp16 holds. They stay floats."""

    def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
        x_at, count = args

        def one_vector(i: Value, carried: list[Value]) -> list[Value]:
            offset = b.mul(i, const_i64(4 * LANES))
            halves = b.fptrunc(load(b, x_at, offset, FLOATS), _HALVES)
            store(b, b.fpext(halves, FLOATS), x_at, offset)
            return []

        for_each(b, b.sdiv(count, const_i64(LANES)), [], one_vector)
        return context.get_dummy_value()

    return types.void(x, count), codegen


@intrinsic
def write_halves(context: Any, x: Any, count: Any, out: Any) -> Any:
    """Write `count` floats at `x`, a multiple of 16, to `out` as fp16."""

    def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
        x_at, count, out_at = args

        def one_vector(i: Value, carried: list[Value]) -> list[Value]:
            halves = b.fptrunc(load(b, x_at, b.mul(i, const_i64(4 * LANES)), FLOATS), _HALVES)
            store(b, halves, out_at, b.mul(i, const_i64(HALF_BYTES * LANES)))
            return []

        for_each(b, b.sdiv(count, const_i64(LANES)), [], one_vector)
        return context.get_dummy_value()

    return types.void(x, count, out), codegen


@intrinsic
def scatter_halves(context: Any, x: Any, count: Any, out: Any, stride: Any) -> Any:
    """As `write_halves`, `stride` bytes apart."""

    def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
        x_at, count, out_at, stride = args

        def one_float(i: Value, carried: list[Value]) -> list[Value]:
            half = b.fptrunc(load(b, x_at, b.mul(i, const_i64(4)), F32), F16)
            store(b, half, out_at, b.mul(i, stride))
            return []

        for_each(b, count, [], one_float)
        return context.get_dummy_value()

    return types.void(x, count, out, stride), codegen


def make_page_scores(num_heads: int) -> Any:
    """page_scores(q, q_stride, keys, dim_stride, head_dim, scores, score_stride, ahead): dot products of `num_heads`
    queries with 16 keys, whose numbers of one dimension are adjacent. Strides are in bytes. From `ahead` as many bytes
    are prefetched as are read from `keys`."""

    @intrinsic
    def page_scores(
        context: Any,
        q: Any,
        q_stride: Any,
        keys: Any,
        dim_stride: Any,
        head_dim: Any,
        scores: Any,
        score_stride: Any,
        ahead: Any,
    ) -> Any:
        def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
            q_at, q_stride, keys_at, dim_stride, head_dim, scores_at, score_stride, ahead = args
            heads = range(num_heads)
            queries = [b.add(q_at, b.mul(q_stride, const_i64(head))) for head in heads]

            def some_dims(i: Value, sums: list[Value]) -> list[Value]:
                first = b.mul(i, const_i64(_UNROLL))
                for step in range(_UNROLL):
                    dim = b.add(first, const_i64(step))
                    offset = b.mul(dim, dim_stride)
                    numbers = b.fpext(load(b, keys_at, offset, _HALVES), FLOATS)
                    if step % 2 == 0:  # a cache line has two dimensions of a page of 16 tokens
                        prefetch(b, ahead, offset)
                    for head in heads:
                        factor = splat(b, load(b, queries[head], b.mul(dim, const_i64(4)), F32), FLOATS)
                        place = head * _PARTIAL_SUMS + step % _PARTIAL_SUMS
                        sums[place] = fma(b, factor, numbers, sums[place])
                return sums

            none = [ZEROS] * (num_heads * _PARTIAL_SUMS)
            sums = for_each(b, b.sdiv(head_dim, const_i64(_UNROLL)), none, some_dims)
            for head in heads:
                parts = sums[head * _PARTIAL_SUMS : (head + 1) * _PARTIAL_SUMS]
                store(b, _pairwise_sum(b, parts), scores_at, b.mul(score_stride, const_i64(head)))
            return context.get_dummy_value()

        return types.void(q, q_stride, keys, dim_stride, head_dim, scores, score_stride, ahead), codegen

    return page_scores


@intrinsic
def span_scores(context: Any, q: Any, keys: Any, key_stride: Any, count: Any, head_dim: Any, scores: Any) -> Any:
    """Dot products of a query with `count` keys of the batch, floats whose dimensions are adjacent. Products are added
    in the order of `make_page_scores`: a score does not depend on whether its key is in a page."""
    vector = ir.VectorType(F32, _PARTIAL_SUMS)

    def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
        q_at, keys_at, key_stride, count, head_dim, scores_at = args

        def one_key(i: Value, carried: list[Value]) -> list[Value]:
            key_at = b.add(keys_at, b.mul(i, key_stride))

            def some_dims(block: Value, sums: list[Value]) -> list[Value]:
                for first in range(0, _UNROLL, _PARTIAL_SUMS):
                    offset = b.mul(b.add(b.mul(block, const_i64(_UNROLL)), const_i64(first)), const_i64(4))
                    factors = [load(b, q_at, offset, vector), load(b, key_at, offset, vector), sums[0]]
                    sums = [call(b, f"llvm.fma.v{_PARTIAL_SUMS}f32", vector, factors)]
                return sums

            num_blocks = b.sdiv(head_dim, const_i64(_UNROLL))
            (lanes,) = for_each(b, num_blocks, [ir.Constant(vector, [0.0] * _PARTIAL_SUMS)], some_dims)
            parts = [b.extract_element(lanes, ir.Constant(I32, lane)) for lane in range(_PARTIAL_SUMS)]
            store(b, _pairwise_sum(b, parts), scores_at, b.mul(i, const_i64(4)))
            return []

        for_each(b, count, [], one_key)
        return context.get_dummy_value()

    return types.void(q, keys, key_stride, count, head_dim, scores), codegen


def _pairwise_sum(b: Builder, parts: list[Value]) -> Value:
    """The additions stay in this order: numba allows other orders only for instructions without a flag of their own."""
    while len(parts) > 1:
        parts = [b.fadd(x, y, flags=("arcp",)) for x, y in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
