"""Dot products of bytes as LLVM instructions: unsigned weights times signed activations, four products per lane."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import binding, ir

from quicksilver.backends.cpu.llvm import I8, I16, I32, INTS, LANES, Builder, Value, call

_PMADDWD = "llvm.x86.avx2.pmadd.wd"

# dot(b, sums, weights, x): adds four products of unsigned and signed bytes to each of 16 sums.
Dot = Callable[[Builder, Value, Value, Value], Value]


def dot_vnni(b: Builder, sums: Value, weights: Value, x: Value) -> Value:
    """One instruction (AVX-512 VNNI)."""
    wide = ir.VectorType(I8, 64)
    takes_bytes = binding.llvm_version_info[0] >= 22
    kinds = [INTS, wide, wide] if takes_bytes else [INTS] * 3
    args = [sums, b.bitcast(weights, kinds[1]), b.bitcast(x, kinds[2])]
    return call(b, "llvm.x86.avx512.vpdpbusd.512", INTS, args)


def dot_avx2(b: Builder, sums: Value, weights: Value, x: Value) -> Value:
    """Even and odd bytes separately, widened to 16 bits: two multiply-adds per eight lanes, without overflow."""
    halves = []
    for half in range(2):
        take = [_slice(b, vector, half) for vector in (sums, weights, x)]
        halves.append(_dot_half(b, *take))
    return b.shuffle_vector(halves[0], halves[1], ir.Constant(ir.VectorType(I32, LANES), list(range(LANES))))


def _dot_half(b: Builder, sums: Value, weights: Value, x: Value) -> Value:
    short, eight = ir.VectorType(I16, 16), ir.VectorType(I32, 8)
    byte = ir.Constant(short, [8] * 16)
    w, s = b.bitcast(weights, short), b.bitcast(x, short)
    even = call(b, _PMADDWD, eight, [b.and_(w, ir.Constant(short, [255] * 16)), b.ashr(b.shl(s, byte), byte)])
    odd = call(b, _PMADDWD, eight, [b.lshr(w, byte), b.ashr(s, byte)])
    return b.add(sums, b.add(even, odd))


def _slice(b: Builder, vector: Value, half: int) -> Value:
    lanes = ir.Constant(ir.VectorType(I32, 8), list(range(8 * half, 8 * half + 8)))
    return b.shuffle_vector(vector, ir.Constant(INTS, ir.Undefined), lanes)
