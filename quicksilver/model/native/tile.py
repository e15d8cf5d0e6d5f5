"""The innermost product, written as LLVM instructions: a few rows of activations by 64 columns of weights.

Weights are unsigned bytes (the signed value plus 128), laid out so that one load brings four inputs of 16 columns;
activations are signed bytes. Both have a scale for every group of 64 inputs. Sums within a group are whole numbers and
groups are added in order, so a row comes out the same in a tile of any height.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from quicksilver.model.native.emit import (
    F32,
    FLOATS,
    I8,
    I16,
    I32,
    I64,
    INTS,
    LANES,
    ZEROS,
    Builder,
    Value,
    at,
    call,
    fma,
    load,
    phi,
    splat,
    store,
    word,
)  # fmt: skip

GROUP_LEN = 64
STRIP = 64
"""Columns of a tile: four vectors of 16."""
_UNROLL = 4
_PAIRS = "llvm.x86.avx2.pmadd.wd"

Dot = Callable[[Builder, Value, Value, Value], Value]
"""Adds the products of unsigned and signed bytes, four a lane, to 16 sums."""


def make_tile(num_rows: int, num_vectors: int, dot: Dot) -> Any:
    """A function for compiled code: `num_rows` rows by `num_vectors` * 16 columns.

    tile(rows, x, y, w, num_groups, adds), addresses as integers: `rows` of the numbers of the rows; x is (values, bytes
    a row, scales, bytes a row, offsets), y (values, bytes a row), w (packed weights, scales of the columns).
    """

    @intrinsic
    def tile(context: Any, rows: Any, x: Any, y: Any, w: Any, num_groups: Any, adds: Any) -> Any:
        signature = types.void(rows, x, y, w, num_groups, adds)

        def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
            _Tile(b, num_rows, num_vectors, dot).emit(*args)
            return context.get_dummy_value()

        return signature, codegen

    return tile


class _Tile:
    """The instructions of one tile; `emit` leaves the builder behind them."""

    def __init__(self, b: Builder, num_rows: int, num_vectors: int, dot: Dot) -> None:
        self.b, self.dot = b, dot
        self.rows, self.vectors = range(num_rows), range(num_vectors)
        self.cells = [(r, c) for r in self.rows for c in self.vectors]

    def emit(self, rows: Value, x: Value, y: Value, w: Value, num_groups: Value, adds: Value) -> None:
        b = self.b
        index = [b.load(at(b, rows, 8 * r, I64)) for r in self.rows]
        x_at, x_step, scales_at, scales_step, offsets_at = (b.extract_value(x, i) for i in range(5))
        self.x = [b.add(x_at, b.mul(i, x_step)) for i in index]
        self.scales = [b.add(scales_at, b.mul(i, scales_step)) for i in index]
        self.offsets = [b.add(offsets_at, b.mul(i, scales_step)) for i in index]
        y_at, y_step = (b.extract_value(y, i) for i in range(2))
        weights, column_scales = (b.extract_value(w, i) for i in range(2))
        stride = b.mul(num_groups, word(GROUP_LEN * LANES))
        self.weights = [b.add(weights, b.mul(stride, word(c))) for c in self.vectors]
        scales_stride = b.mul(num_groups, word(4 * LANES))
        self.column_scales = [b.add(column_scales, b.mul(scales_stride, word(c))) for c in self.vectors]
        sums = self._all_groups(num_groups)
        self._store(sums, [b.add(y_at, b.mul(i, y_step)) for i in index], adds)

    def _all_groups(self, num_groups: Value) -> list[Value]:
        b, before = self.b, self.b.block
        loop, inner, after, done = (b.append_basic_block() for _ in range(4))
        b.branch(loop)
        b.position_at_end(loop)
        group = phi(b, I64, word(0), before)
        totals = [phi(b, FLOATS, ZEROS, before) for _ in self.cells]
        starts = [splat(b, b.load(at(b, self.offsets[r], b.mul(group, word(4)), I32)), INTS) for r in self.rows]
        first = b.mul(group, word(GROUP_LEN))
        b.branch(inner)
        b.position_at_end(inner)
        sums = self._one_group(first, starts, (loop, inner, after))
        b.position_at_end(after)
        scales = [splat(b, b.load(at(b, self.scales[r], b.mul(group, word(4)), F32)), FLOATS) for r in self.rows]
        columns = [load(b, at_c, b.mul(group, word(4 * LANES)), FLOATS) for at_c in self.column_scales]
        found = []
        for (r, c), total, whole in zip(self.cells, totals, sums, strict=True):
            found.append(fma(b, b.fmul(b.sitofp(whole, FLOATS), scales[r]), columns[c], total))
            total.add_incoming(found[-1], after)
        following = b.add(group, word(1))
        group.add_incoming(following, after)
        b.cbranch(b.icmp_signed("<", following, num_groups), loop, done)
        b.position_at_end(done)
        return found

    def _one_group(self, first: Value, starts: list[Value], blocks: tuple[Value, Value, Value]) -> list[Value]:
        """Whole-number sums over the 64 inputs from `first` on, begun at the rows' offsets."""
        b, (before, inner, after) = self.b, blocks
        k = phi(b, I64, word(0), before)
        heads = [phi(b, INTS, starts[r], before) for r, _ in self.cells]
        sums = dict(zip(self.cells, heads, strict=True))
        for step in range(_UNROLL):
            k4 = b.add(b.add(first, k), word(4 * step))
            weights = [load(b, self.weights[c], b.mul(k4, word(LANES)), INTS) for c in self.vectors]
            for r in self.rows:
                x = splat(b, load(b, self.x[r], k4, I32), INTS)
                for c in self.vectors:
                    sums[r, c] = self.dot(b, sums[r, c], weights[c], x)
        following = b.add(k, word(4 * _UNROLL))
        k.add_incoming(following, inner)
        for head, cell in zip(heads, self.cells, strict=True):
            head.add_incoming(sums[cell], inner)
        b.cbranch(b.icmp_signed("<", following, word(GROUP_LEN)), inner, after)
        return list(sums.values())

    def _store(self, sums: list[Value], y: list[Value], adds: Value) -> None:
        b = self.b
        is_kept = b.icmp_signed("!=", adds, word(0))
        for (r, c), total in zip(self.cells, sums, strict=True):
            old = b.select(is_kept, load(b, y[r], 64 * c, FLOATS), ZEROS)
            store(b, b.fadd(old, total), y[r], 64 * c)


def dot_vnni(b: Builder, sums: Value, weights: Value, x: Value) -> Value:
    """One instruction (AVX-512 VNNI)."""
    wide = ir.VectorType(I8, 64)
    takes_bytes = binding.llvm_version_info[0] >= 22
    kinds = [INTS, wide, wide] if takes_bytes else [INTS] * 3
    args = [sums, b.bitcast(weights, kinds[1]), b.bitcast(x, kinds[2])]
    return call(b, "llvm.x86.avx512.vpdpbusd.512", INTS, args)


def dot_avx2(b: Builder, sums: Value, weights: Value, x: Value) -> Value:
    """Even and odd bytes apart, as 16-bit numbers: two multiply-adds for eight lanes, without overflow."""
    halves = []
    for half in range(2):
        take = [_slice(b, vector, half) for vector in (sums, weights, x)]
        halves.append(_dot_half(b, *take))
    return b.shuffle_vector(halves[0], halves[1], ir.Constant(ir.VectorType(I32, LANES), list(range(LANES))))


def _dot_half(b: Builder, sums: Value, weights: Value, x: Value) -> Value:
    short, eight = ir.VectorType(I16, 16), ir.VectorType(I32, 8)
    byte = ir.Constant(short, [8] * 16)
    w, s = b.bitcast(weights, short), b.bitcast(x, short)
    even = call(b, _PAIRS, eight, [b.and_(w, ir.Constant(short, [255] * 16)), b.ashr(b.shl(s, byte), byte)])
    odd = call(b, _PAIRS, eight, [b.lshr(w, byte), b.ashr(s, byte)])
    return b.add(sums, b.add(even, odd))


def _slice(b: Builder, vector: Value, half: int) -> Value:
    lanes = ir.Constant(ir.VectorType(I32, 8), list(range(8 * half, 8 * half + 8)))
    return b.shuffle_vector(vector, ir.Constant(INTS, ir.Undefined), lanes)
