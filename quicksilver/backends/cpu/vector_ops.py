"""Loops over whole vectors, written as LLVM instructions: rounding a group, scores of keys, sums of values.

Each is one pass in a fixed order. Addresses are integers, steps are in bytes.
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
    I64,
    INTS,
    LANES,
    ZEROS,
    Builder,
    Value,
    call,
    float_of,
    fma,
    load,
    phi,
    splat,
    store,
    word,
)  # fmt: skip

_BYTES = ir.VectorType(I8, LANES)
_VECTOR_BYTES = 4 * LANES


@intrinsic
def round_group(context: Any, x: Any, values: Any, scale: Any, offset: Any, sums: Any) -> Any:
    """64 floats at `x` -> int8 at `values`, their scale at `scale`, -128 times their sum at `offset`, and at `sums`
    what either half of them now adds up to.

    Sizes are compared as bits, where not-a-number is above everything: it becomes the scale.
    """

    def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
        x_at, values_at, scale_at, offset_at, sums_at = args
        parts = [load(b, x_at, _VECTOR_BYTES * i, FLOATS) for i in range(4)]
        largest = b.bitcast(_largest_bits(b, parts), F32)
        is_zero = b.fcmp_ordered("==", largest, float_of(0.0))
        steps = splat(b, b.select(is_zero, float_of(0.0), b.fdiv(float_of(127.0), largest)), FLOATS)
        wholes = []
        for i, part in enumerate(parts):
            wholes.append(b.fptosi(call(b, "llvm.nearbyint.v16f32", FLOATS, [b.fmul(part, steps)]), INTS))
            store(b, b.trunc(wholes[i], _BYTES), values_at, LANES * i)
        size = b.fdiv(largest, float_of(127.0))
        store(b, size, scale_at, 0)
        halves = [call(b, "llvm.vector.reduce.add.v16i32", I32, [b.add(*wholes[i : i + 2])]) for i in (0, 2)]
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
def largest_of(context: Any, x: Any, count: Any) -> Any:
    """The largest of `count` floats at `x`; not-a-number is passed over."""

    def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
        x_at, count = args
        whole = b.sdiv(count, word(LANES))

        def one_vector(i: Value, held: list[Value]) -> list[Value]:
            return [_larger(b, load(b, x_at, b.mul(i, word(_VECTOR_BYTES)), FLOATS), held[0])]

        (largest,) = _for_each(b, whole, [ir.Constant(FLOATS, [float("-inf")] * LANES)], one_vector)
        width = LANES
        while width > 1:
            width //= 2
            other = ir.Constant(INTS, [(i + width) % LANES for i in range(LANES)])
            largest = _larger(b, b.shuffle_vector(largest, largest, other), largest)
        done = b.mul(whole, word(LANES))

        def one_float(i: Value, held: list[Value]) -> list[Value]:
            return [_larger(b, load(b, x_at, b.mul(b.add(done, i), word(4)), F32), held[0])]

        return _for_each(b, b.sub(count, done), [b.extract_element(largest, ir.Constant(I32, 0))], one_float)[0]

    return types.float32(x, count), codegen


def _larger(b: Builder, x: Value, held: Value) -> Value:
    return b.select(b.fcmp_ordered(">", x, held), x, held)


def make_score(num_vectors: int) -> Any:
    """score(q, keys, key_step, count, scores, adds): dot products of a query with `count` keys, num_vectors * 16 each,
    written to `scores` or, where `adds`, added."""

    @intrinsic
    def score(context: Any, q: Any, keys: Any, key_step: Any, count: Any, scores: Any, adds: Any) -> Any:
        def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
            q_at, keys_at, key_step, count, scores_at, adds = args
            is_kept = b.icmp_signed("!=", adds, word(0))
            query = [load(b, q_at, _VECTOR_BYTES * i, FLOATS) for i in range(num_vectors)]

            def one_key(i: Value, carried: list[Value]) -> list[Value]:
                key_at = b.add(keys_at, b.mul(i, key_step))
                total = ZEROS
                for part, vector in enumerate(query):
                    total = fma(b, vector, load(b, key_at, _VECTOR_BYTES * part, FLOATS), total)
                place = b.mul(i, word(4))
                old = b.select(is_kept, load(b, scores_at, place, F32), float_of(0.0))
                store(b, b.fadd(old, _sum_lanes(b, total)), scores_at, place)
                return []

            _for_each(b, count, [], one_key)
            return context.get_dummy_value()

        return types.void(q, keys, key_step, count, scores, adds), codegen

    return score


def make_mix(num_vectors: int) -> Any:
    """mix(shares, values, value_step, count, out): adds `count` values, each times its share, to what is at `out`."""

    @intrinsic
    def mix(context: Any, shares: Any, values: Any, value_step: Any, count: Any, out: Any) -> Any:
        def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
            shares_at, values_at, value_step, count, out_at = args

            def one_value(i: Value, sums: list[Value]) -> list[Value]:
                share = splat(b, load(b, shares_at, b.mul(i, word(4)), F32), FLOATS)
                value_at = b.add(values_at, b.mul(i, value_step))
                parts = [load(b, value_at, _VECTOR_BYTES * part, FLOATS) for part in range(num_vectors)]
                return [fma(b, share, part, total) for part, total in zip(parts, sums, strict=True)]

            before = [load(b, out_at, _VECTOR_BYTES * part, FLOATS) for part in range(num_vectors)]
            for part, total in enumerate(_for_each(b, count, before, one_value)):
                store(b, total, out_at, _VECTOR_BYTES * part)
            return context.get_dummy_value()

        return types.void(shares, values, value_step, count, out), codegen

    return mix


def _for_each(
    b: Builder, count: Value, carried: list[Value], body: Callable[[Value, list[Value]], list[Value]]
) -> list[Value]:
    """`body` for 0 … count - 1, handing vectors from turn to turn; what the last turn left. Count may be zero."""
    before = b.block
    check, turn, done = (b.append_basic_block() for _ in range(3))
    b.branch(check)
    b.position_at_end(check)
    i = phi(b, I64, word(0), before)
    held = [phi(b, value.type, value, before) for value in carried]
    b.cbranch(b.icmp_signed("<", i, count), turn, done)
    b.position_at_end(turn)
    left = body(i, list(held))
    i.add_incoming(b.add(i, word(1)), b.block)
    for phi_node, value in zip(held, left, strict=True):
        phi_node.add_incoming(value, b.block)
    b.branch(check)
    b.position_at_end(done)
    return list(held)


def _sum_lanes(b: Builder, vector: Value) -> Value:
    """Halves onto halves: always the same order."""
    width = LANES
    while width > 1:
        width //= 2
        other = ir.Constant(INTS, [(i + width) % LANES for i in range(LANES)])
        vector = b.fadd(vector, b.shuffle_vector(vector, vector, other))
    return b.extract_element(vector, ir.Constant(I32, 0))
