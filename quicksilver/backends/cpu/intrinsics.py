"""Intrinsics for compiled code: the address of an array, and an exp that LLVM can vectorise.

`exp32` is within 2 ulp of exp. It consists of plain float operations, so loops around it become vector code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from quicksilver.backends.cpu.llvm import F32, I32, I64, Builder, Value, call, const_f32


@intrinsic
def address_of(context: Any, array: Any) -> Any:
    """The address of an array's first element, as an integer."""

    def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
        return b.ptrtoint(context.make_array(signature.args[0])(context, b, args[0]).data, I64)

    return types.intp(array), codegen


@intrinsic
def exp32(context: Any, x: Any) -> Any:
    """exp of a float32 up to 88. Inputs below -87 give exp(-87), about 1.6e-38."""

    def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
        low = const_f32(-87.0)
        x = b.select(b.fcmp_ordered("<", args[0], low), low, args[0])
        twos = _round(b, b.fmul(x, const_f32(1.4426950408889634)))
        rest = _fma(b, twos, const_f32(-0.693359375), x)
        rest = _fma(b, twos, const_f32(2.12194440e-4), rest)
        value = const_f32(1.9875691500e-4)
        for factor in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5, 1.0, 1.0):
            value = _fma(b, value, rest, const_f32(factor))
        bits = b.add(b.bitcast(value, I32), b.shl(b.fptosi(twos, I32), ir.Constant(I32, 23)))
        return b.bitcast(bits, F32)

    return types.float32(types.float32), codegen


def _round(b: Builder, x: Value) -> Value:
    return call(b, "llvm.nearbyint.f32", F32, [x])


def _fma(b: Builder, x: Value, y: Value, z: Value) -> Value:
    return call(b, "llvm.fma.f32", F32, [x, y, z])
