"""Vector loops as LLVM instructions: quantise a group, maximum, sums, weighted sums of values.

Each is one pass in a fixed order. Addresses are integers; strides are in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from quicksilver.backends.cpu.llvm import (
    F32,
    FLOATS,
    I8,
    I32,
    INTS,
    LANES,
    ZEROS,
    Builder,
    Value,
    call,
    const_f32,
    const_i64,
    fma,
    for_each,
    load,
    prefetch,
    splat,
    store,
)  # fmt: skip

_BYTES = ir.VectorType(I8, LANES)
_VECTOR_BYTES = 4 * LANES


@intrinsic
def quantise_group(context: Any, x: Any, values: Any, scale: Any, offset: Any, sums: Any) -> Any:
    """Quantise 64 floats at `x`, and write four results to the other addresses.

    They are: the int8 `values`, their `scale`, -128 times their integer sum (`offset`), and the dequantised `sums` of
    both halves.

    Magnitudes are compared as bit patterns, where NaN is the largest: the scale of a group with NaN is NaN.
    """

    def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
        x_at, values_at, scale_at, offset_at, sums_at = args
        parts = [load(b, x_at, _VECTOR_BYTES * i, FLOATS) for i in range(4)]
        largest = b.bitcast(_largest_bits(b, parts), F32)
        is_zero = b.fcmp_ordered("==", largest, const_f32(0.0))
        steps = splat(b, b.select(is_zero, const_f32(0.0), b.fdiv(const_f32(127.0), largest)), FLOATS)
        rounded = []
        for i, part in enumerate(parts):
            rounded.append(b.fptosi(call(b, "llvm.nearbyint.v16f32", FLOATS, [b.fmul(part, steps)]), INTS))
            store(b, b.trunc(rounded[i], _BYTES), values_at, LANES * i)
        size = b.fdiv(largest, const_f32(127.0))
        store(b, size, scale_at, 0)
        halves = [call(b, "llvm.vector.reduce.add.v16i32", I32, [b.add(*rounded[i : i + 2])]) for i in (0, 2)]
        store(b, b.mul(b.add(*halves), ir.Constant(I32, -128)), offset_at, 0)
        for i, half in enumerate(halves):
            store(b, b.fmul(b.sitofp(half, F32), size), sums_at, 4 * i)
        return context.get_dummy_value()

    return types.void(x, values, scale, offset, sums), codegen


def _largest_bits(b: Builder, parts: list[Value]) -> Value:
    sizes = [b.and_(b.bitcast(part, INTS), ir.Constant(INTS, [0x7FFFFFFF] * LANES)) for part in parts]
    while len(sizes) > 1:
        pairs = zip(sizes[::2], sizes[1::2], strict=True)
        sizes = [b.select(b.icmp_unsigned(">", x, y), x, y) for x, y in pairs]
    return call(b, "llvm.vector.reduce.umax.v16i32", I32, sizes)


@intrinsic
def max_of(context: Any, x: Any, count: Any) -> Any:
    """The maximum of `count` floats at `x`, ignoring NaN."""

    def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
        x_at, count = args
        whole = b.sdiv(count, const_i64(LANES))

        def one_vector(i: Value, carry: list[Value]) -> list[Value]:
            return [_larger(b, load(b, x_at, b.mul(i, const_i64(_VECTOR_BYTES)), FLOATS), carry[0])]

        (largest,) = for_each(b, whole, [ir.Constant(FLOATS, [float("-inf")] * LANES)], one_vector)
        width = LANES
        while width > 1:
            width //= 2
            other = ir.Constant(INTS, [(i + width) % LANES for i in range(LANES)])
            largest = _larger(b, b.shuffle_vector(largest, largest, other), largest)
        done = b.mul(whole, const_i64(LANES))

        def one_float(i: Value, carry: list[Value]) -> list[Value]:
            return [_larger(b, load(b, x_at, b.mul(b.add(done, i), const_i64(4)), F32), carry[0])]

        return for_each(b, b.sub(count, done), [b.extract_element(largest, ir.Constant(I32, 0))], one_float)[0]

    return types.float32(x, count), codegen


def _larger(b: Builder, x: Value, carry: Value) -> Value:
    return b.select(b.fcmp_ordered(">", x, carry), x, carry)


@intrinsic
def sum_of(context: Any, x: Any, count: Any) -> Any:
    """The sum of `count` floats at `x`."""

    def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
        return _sum(b, args[0], args[1], lambda value: value)

    return types.float32(x, count), codegen


@intrinsic
def sum_of_squares(context: Any, x: Any, count: Any) -> Any:
    """The sum of the squares of `count` floats at `x`."""

    def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
        return _sum(b, args[0], args[1], lambda value: b.fmul(value, value))

    return types.float32(x, count), codegen


def _sum(b: Builder, x_at: Value, count: Value, term: Callable[[Value], Value]) -> Value:
    """The sum of `term` over `count` floats: each lane for itself, then the lanes, then the floats after the last whole
    vector."""
    whole = b.sdiv(count, const_i64(LANES))

    def one_vector(i: Value, carry: list[Value]) -> list[Value]:
        return [b.fadd(carry[0], term(load(b, x_at, b.mul(i, const_i64(_VECTOR_BYTES)), FLOATS)))]

    (lanes,) = for_each(b, whole, [ZEROS], one_vector)
    done = b.mul(whole, const_i64(LANES))

    def one_float(i: Value, carry: list[Value]) -> list[Value]:
        return [b.fadd(carry[0], term(load(b, x_at, b.mul(b.add(done, i), const_i64(4)), F32)))]

    return for_each(b, b.sub(count, done), [_sum_lanes(b, lanes)], one_float)[0]


def make_value_sum(num_vectors: int, num_heads: int = 1, kind: Any = F32) -> Any:
    """value_sum(weights, weight_stride, values, value_stride, count, out, ahead): add weighted sums of `count` values,
    numbers of `kind`, to `out`: one sum for each of `num_heads` adjacent heads. A value is loaded once for all of them.
    From `ahead` as many bytes are prefetched as are read from `values`."""
    value_vector = ir.VectorType(kind, LANES)
    value_bytes = LANES * (4 if kind is F32 else 2)

    @intrinsic
    def value_sum(
        context: Any, weights: Any, weight_stride: Any, values: Any, value_stride: Any, count: Any, out: Any, ahead: Any
    ) -> Any:
        def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
            weights_at, weight_stride, values_at, value_stride, count, out_at, ahead = args
            starts = [b.add(weights_at, b.mul(weight_stride, const_i64(head))) for head in range(num_heads)]
            places = [_VECTOR_BYTES * i for i in range(num_heads * num_vectors)]

            def one_value(i: Value, sums: list[Value]) -> list[Value]:
                place, offset = b.mul(i, value_stride), b.mul(i, const_i64(4))
                value_at, ahead_at = b.add(values_at, place), b.add(ahead, place)
                for line in range(0, num_vectors * value_bytes, _VECTOR_BYTES):
                    prefetch(b, ahead_at, const_i64(line))
                parts = [load(b, value_at, value_bytes * part, value_vector) for part in range(num_vectors)]
                parts = parts if kind is F32 else [b.fpext(part, FLOATS) for part in parts]
                factors = [splat(b, load(b, start, offset, F32), FLOATS) for start in starts]
                pairs = [(factor, part) for factor in factors for part in parts]
                return [fma(b, *pair, total) for pair, total in zip(pairs, sums, strict=True)]

            before = [load(b, out_at, place, FLOATS) for place in places]
            for place, total in zip(places, for_each(b, count, before, one_value), strict=True):
                store(b, total, out_at, place)
            return context.get_dummy_value()

        return types.void(weights, weight_stride, values, value_stride, count, out, ahead), codegen

    return value_sum


def _sum_lanes(b: Builder, vector: Value) -> Value:
    """The sum of all lanes, adding halves: a fixed order."""
    width = LANES
    while width > 1:
        width //= 2
        other = ir.Constant(INTS, [(i + width) % LANES for i in range(LANES)])
        vector = b.fadd(vector, b.shuffle_vector(vector, vector, other))
    return b.extract_element(vector, ir.Constant(I32, 0))
