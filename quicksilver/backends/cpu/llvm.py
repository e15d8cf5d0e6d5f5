"""Words for writing LLVM instructions: addresses as integers, vectors of 16 lanes."""

from __future__ import annotations

import struct
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


def word(value: int) -> Value:
    return ir.Constant(I64, value)


def at(b: Builder, address: Value, offset: Value | int, kind: Any) -> Value:
    offset = word(offset) if isinstance(offset, int) else offset
    return b.inttoptr(b.add(address, offset), kind.as_pointer())


def aligned(instruction: Value, align: int) -> Value:
    instruction.align = align
    return instruction


def splat(b: Builder, value: Value, kind: Any) -> Value:
    first = b.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
    return b.shuffle_vector(first, ir.Constant(kind, ir.Undefined), ir.Constant(INTS, [0] * LANES))


def phi(b: Builder, kind: Any, start: Value, block: Value) -> Value:
    phi = b.phi(kind)
    phi.add_incoming(start, block)
    return phi


def load(b: Builder, address: Value, offset: Value | int, kind: Any) -> Value:
    """Anywhere in memory: no alignment is assumed."""
    return aligned(b.load(at(b, address, offset, kind)), 1)


def store(b: Builder, value: Value, address: Value, offset: Value | int) -> None:
    aligned(b.store(value, at(b, address, offset, value.type)), 1)


def call(b: Builder, name: str, kind: Any, args: list[Value]) -> Value:
    """An LLVM intrinsic or a C function."""
    return b.call(get_or_insert_function(b.module, ir.FunctionType(kind, [arg.type for arg in args]), name), args)


def fma(b: Builder, x: Value, y: Value, z: Value) -> Value:
    return call(b, "llvm.fma.v16f32", FLOATS, [x, y, z])


def float_of(value: float) -> Value:
    return ir.Constant(F32, struct.unpack("f", struct.pack("f", value))[0])


def fetch(b: Builder, address: Value, offset: Value) -> None:
    """Ask for the cache line there, into the second-level cache. Nothing waits for it, and any address will do."""
    hints = [ir.Constant(I32, 0), ir.Constant(I32, 2), ir.Constant(I32, 1)]
    call(b, "llvm.prefetch.p0", ir.VoidType(), [at(b, address, offset, I8), *hints])
