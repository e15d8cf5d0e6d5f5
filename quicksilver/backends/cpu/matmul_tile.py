"""The innermost matmul tile as LLVM instructions: a few rows of activations by up to 64 columns of weights.

Activations are int8 with one scale per group of 64 inputs; weights are unsigned 8-bit or 4-bit numbers. Sums within a
group (or half a group of 4-bit weights) are integers, and groups are added in order, so a row gets the same bits in a
tile of any height.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from quicksilver.backends.cpu.int8_dot import Dot
from quicksilver.backends.cpu.llvm import (
    F16,
    F32,
    FLOATS,
    I32,
    I64,
    INTS,
    LANES,
    ZEROS,
    Builder,
    Value,
    const_i64,
    fma,
    load,
    phi,
    pointer,
    prefetch,
    splat,
    store,
)  # fmt: skip

# Inputs per scale, of weights and activations alike. Smaller groups are more precise and slower; the tile code, which
# unrolls groups, is written for 64.
GROUP_LEN = 64
# Columns of a full tile: four vectors of 16.
STRIP_LEN = 64
_UNROLL = 4
_HALVES = ir.VectorType(F16, LANES)


def make_tile(num_rows: int, num_vectors: int, dot: Dot, bits: int) -> Any:
    """A function for compiled code: `num_rows` rows by `num_vectors` * 16 columns, over some groups of the inputs.

    tile(rows, x, y, w, groups, accumulate, ahead), where addresses are integers:

    - rows: address of the row indices
    - x: (values, row stride, scales, row stride, offsets, sums) of the activations
    - y: (values, row stride) of the result
    - w: (packed weights, scales)
    - groups: (first, end, groups of the integer_sum matrix)
    - accumulate: whether to add to y
    - ahead: one address per vector. While the tile computes, it prefetches from there the same number of bytes, at the
      same offsets, as it reads from w.
    """
    kind = _Int8Tile if bits == 8 else _Int4Tile

    @intrinsic
    def tile(context: Any, rows: Any, x: Any, y: Any, w: Any, groups: Any, accumulate: Any, ahead: Any) -> Any:
        signature = types.void(rows, x, y, w, groups, accumulate, ahead)

        def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
            kind(b, num_rows, num_vectors, dot).emit(*args)
            return context.get_dummy_value()

        return signature, codegen

    return tile


class _Tile(ABC):
    """Emits the instructions of one tile; `emit` leaves the builder after them."""

    weight_bytes: int  # of one group of inputs and one vector of columns
    scale_bytes: int

    def __init__(self, b: Builder, num_rows: int, num_vectors: int, dot: Dot) -> None:
        self.b, self.dot = b, dot
        self.rows, self.vectors = range(num_rows), range(num_vectors)
        self.cells = [(r, c) for r in self.rows for c in self.vectors]

    def emit(self, rows: Value, x: Value, y: Value, w: Value, groups: Value, accumulate: Value, ahead: Value) -> None:
        b = self.b
        index = [b.load(pointer(b, rows, 8 * r, I64)) for r in self.rows]
        x_at, x_step, scales_at, scales_step, offsets_at, sums_at = (b.extract_value(x, i) for i in range(6))
        self.x = [b.add(x_at, b.mul(i, x_step)) for i in index]
        self.scales = [b.add(scales_at, b.mul(i, scales_step)) for i in index]
        self.offsets = [b.add(offsets_at, b.mul(i, scales_step)) for i in index]
        self.sums = [b.add(sums_at, b.mul(b.mul(i, scales_step), const_i64(2))) for i in index]
        y_at, y_step = (b.extract_value(y, i) for i in range(2))
        y_rows = [b.add(y_at, b.mul(i, y_step)) for i in index]
        first, end, num_groups = (b.extract_value(groups, i) for i in range(3))
        self.ahead = [b.extract_value(ahead, c) for c in self.vectors]
        self.weights = self._columns(b.extract_value(w, 0), num_groups, self.weight_bytes)
        self.column_scales = self._columns(b.extract_value(w, 1), num_groups, self.scale_bytes)
        accumulates = b.icmp_signed("!=", accumulate, const_i64(0))
        starts = [b.select(accumulates, load(b, y_rows[r], 64 * c, FLOATS), ZEROS) for r, c in self.cells]
        for (r, c), total in zip(self.cells, self.add_groups(first, end, starts), strict=True):
            store(b, total, y_rows[r], 64 * c)

    def _columns(self, address: Value, num_groups: Value, num_bytes: int) -> list[Value]:
        stride = self.b.mul(num_groups, const_i64(num_bytes))
        return [self.b.add(address, self.b.mul(stride, const_i64(c))) for c in self.vectors]

    @abstractmethod
    def add_groups(self, first: Value, end: Value, starts: list[Value]) -> list[Value]:
        """`starts` plus the sums over groups `first` … `end` - 1, for all cells."""

    def _prefetch(self, offset: Value) -> None:
        for address in self.ahead:
            prefetch(self.b, address, offset)

    def _broadcast(self, addresses: list[Value], offset: Value, kinds: tuple[Any, Any]) -> list[Value]:
        return [splat(self.b, load(self.b, address, offset, kinds[0]), kinds[1]) for address in addresses]


class _Int8Tile(_Tile):
    """8-bit weights: the signed value plus 128. One load reads four inputs of 16 columns."""

    weight_bytes = GROUP_LEN * LANES
    scale_bytes = 4 * LANES

    def add_groups(self, first: Value, end: Value, starts: list[Value]) -> list[Value]:
        b, before = self.b, self.b.block
        loop, inner, after, done = (b.append_basic_block() for _ in range(4))
        b.branch(loop)
        b.position_at_end(loop)
        group = phi(b, I64, first, before)
        totals = [phi(b, FLOATS, start, before) for start in starts]
        offset, first_input = b.mul(group, const_i64(4)), b.mul(group, const_i64(GROUP_LEN))
        offsets = self._broadcast(self.offsets, offset, (I32, INTS))
        b.branch(inner)
        b.position_at_end(inner)
        sums = self._one_group(first_input, offsets, (loop, inner, after))
        b.position_at_end(after)
        scales = self._broadcast(self.scales, offset, (F32, FLOATS))
        columns = [load(b, at_c, b.mul(group, const_i64(self.scale_bytes)), FLOATS) for at_c in self.column_scales]
        found = []
        for (r, c), total, integer_sum in zip(self.cells, totals, sums, strict=True):
            found.append(fma(b, b.fmul(b.sitofp(integer_sum, FLOATS), scales[r]), columns[c], total))
            total.add_incoming(found[-1], after)
        following = b.add(group, const_i64(1))
        group.add_incoming(following, after)
        b.cbranch(b.icmp_signed("<", following, end), loop, done)
        b.position_at_end(done)
        return found

    def _one_group(self, first: Value, starts: list[Value], blocks: tuple[Value, Value, Value]) -> list[Value]:
        """Integer sums over the 64 inputs from `first` on, starting at the offsets of the rows."""
        b, (before, inner, after) = self.b, blocks
        k = phi(b, I64, const_i64(0), before)
        heads = [phi(b, INTS, starts[r], before) for r, _ in self.cells]
        sums = dict(zip(self.cells, heads, strict=True))
        for step in range(_UNROLL):
            k4 = b.add(b.add(first, k), const_i64(4 * step))
            offset = b.mul(k4, const_i64(LANES))
            weights = [load(b, self.weights[c], offset, INTS) for c in self.vectors]
            self._prefetch(offset)
            for r, x in enumerate(self._broadcast(self.x, k4, (I32, INTS))):
                for c in self.vectors:
                    sums[r, c] = self.dot(b, sums[r, c], weights[c], x)
        following = b.add(k, const_i64(4 * _UNROLL))
        k.add_incoming(following, inner)
        for head, cell in zip(heads, self.cells, strict=True):
            head.add_incoming(sums[cell], inner)
        b.cbranch(b.icmp_signed("<", following, const_i64(GROUP_LEN)), inner, after)
        return list(sums.values())


class _Int4Tile(_Tile):
    """4-bit weights: 0 … 15, with an fp16 scale and minimum per 32 inputs.

    One load reads eight inputs of 16 columns, the first four in the low nibbles.
    """

    weight_bytes = GROUP_LEN * LANES // 2
    scale_bytes = 8 * LANES

    def add_groups(self, first: Value, end: Value, starts: list[Value]) -> list[Value]:
        """A loop over half groups. The minimum is multiplied by the sum of the row's inputs."""
        b, before = self.b, self.b.block
        first_half, end_half = b.mul(first, const_i64(2)), b.mul(end, const_i64(2))
        loop, done = (b.append_basic_block() for _ in range(2))
        b.branch(loop)
        b.position_at_end(loop)
        half = phi(b, I64, first_half, before)
        totals = [phi(b, FLOATS, start, before) for start in starts]
        sums = self._one_half(half)
        scales = self._broadcast(self.scales, b.mul(b.sdiv(half, const_i64(2)), const_i64(4)), (F32, FLOATS))
        row_sums = self._broadcast(self.sums, b.mul(half, const_i64(4)), (F32, FLOATS))
        steps, minimums = (self._widened(half, start) for start in (0, 2 * LANES))
        found = []
        for (r, c), total in zip(self.cells, totals, strict=True):
            part = fma(b, b.fmul(b.sitofp(sums[r, c], FLOATS), scales[r]), steps[c], total)
            found.append(fma(b, row_sums[r], minimums[c], part))
            total.add_incoming(found[-1], loop)
        following = b.add(half, const_i64(1))
        half.add_incoming(following, loop)
        b.cbranch(b.icmp_signed("<", following, end_half), loop, done)
        b.position_at_end(done)
        return found

    def _widened(self, half: Value, start: int) -> list[Value]:
        b = self.b
        offset = b.add(b.mul(half, const_i64(self.scale_bytes // 2)), const_i64(start))
        return [b.fpext(load(b, address, offset, _HALVES), FLOATS) for address in self.column_scales]

    def _one_half(self, half: Value) -> dict[tuple[int, int], Value]:
        """Integer sums over 32 inputs."""
        b = self.b
        sums = dict.fromkeys(self.cells, ir.Constant(INTS, [0] * LANES))
        low = ir.Constant(INTS, [0x0F0F0F0F] * LANES)
        for step in range(4):
            offset = b.add(b.mul(half, const_i64(self.weight_bytes // 2)), const_i64(4 * LANES * step))
            packed = [load(b, self.weights[c], offset, INTS) for c in self.vectors]
            self._prefetch(offset)
            for part, shift in enumerate((0, 4)):
                weights = [b.and_(b.lshr(p, ir.Constant(INTS, [shift] * LANES)), low) for p in packed]
                k4 = b.add(b.mul(half, const_i64(GROUP_LEN // 2)), const_i64(8 * step + 4 * part))
                for r, x in enumerate(self._broadcast(self.x, k4, (I32, INTS))):
                    for c in self.vectors:
                        sums[r, c] = self.dot(b, sums[r, c], weights[c], x)
        return sums
