"""Helpers for emitting LLVM instructions: addresses are 64-bit integers, vectors have 16 lanes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core.cgutils import get_or_insert_function

LANES = 16
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
INTS, FLOATS = ir.VectorType(I32, LANES), ir.VectorType(F32, LANES)
ZEROS = ir.Constant(FLOATS, [0.0] * LANES)
Builder = Any
Value = Any


def const_i64(value: int) -> Value:
    return ir.Constant(I64, value)


def const_f32(value: float) -> Value:
    return ir.Constant(F32, struct.unpack("f", struct.pack("f", value))[0])


def pointer(b: Builder, address: Value, offset: Value | int, kind: Any) -> Value:
    """`address` plus `offset` bytes as a pointer to `kind`."""
    offset = const_i64(offset) if isinstance(offset, int) else offset
    return b.inttoptr(b.add(address, offset), kind.as_pointer())


def aligned(instruction: Value, align: int) -> Value:
    instruction.align = align
    return instruction


def splat(b: Builder, value: Value, kind: Any) -> Value:
    """`value` in all lanes of a vector."""
    first = b.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
    return b.shuffle_vector(first, ir.Constant(kind, ir.Undefined), ir.Constant(INTS, [0] * LANES))


def phi(b: Builder, kind: Any, start: Value, block: Value) -> Value:
    """A phi node with the value `start` on entry from `block`."""
    phi = b.phi(kind)
    phi.add_incoming(start, block)
    return phi


def load(b: Builder, address: Value, offset: Value | int, kind: Any) -> Value:
    """An unaligned load."""
    return aligned(b.load(pointer(b, address, offset, kind)), 1)


def store(b: Builder, value: Value, address: Value, offset: Value | int) -> None:
    """An unaligned store."""
    aligned(b.store(value, pointer(b, address, offset, value.type)), 1)


def call(b: Builder, name: str, kind: Any, args: list[Value]) -> Value:
    """Call an LLVM intrinsic or a C function."""
    return b.call(get_or_insert_function(b.module, ir.FunctionType(kind, [arg.type for arg in args]), name), args)


def fma(b: Builder, x: Value, y: Value, z: Value) -> Value:
    return call(b, "llvm.fma.v16f32", FLOATS, [x, y, z])


def prefetch(b: Builder, address: Value, offset: Value) -> None:
    """Prefetch a cache line into the second-level cache. Does not wait; an invalid address is harmless."""
    hints = [ir.Constant(I32, 0), ir.Constant(I32, 2), ir.Constant(I32, 1)]
    call(b, "llvm.prefetch.p0", ir.VoidType(), [pointer(b, address, offset, I8), *hints])


def for_each(
    b: Builder, count: Value, carried: list[Value], body: Callable[[Value, list[Value]], list[Value]]
) -> list[Value]:
    """A loop of `body` for 0 … count - 1 with `carried` values; returns their final values. Count may be zero."""
    before = b.block
    check, loop, done = (b.append_basic_block() for _ in range(3))
    b.branch(check)
    b.position_at_end(check)
    i = phi(b, I64, const_i64(0), before)
    carry = [phi(b, value.type, value, before) for value in carried]
    b.cbranch(b.icmp_signed("<", i, count), loop, done)
    b.position_at_end(loop)
    left = body(i, list(carry))
    i.add_incoming(b.add(i, const_i64(1)), b.block)
    for phi_node, value in zip(carry, left, strict=True):
        phi_node.add_incoming(value, b.block)
    b.branch(check)
    b.position_at_end(done)
    return list(carry)
