"""The innermost product, written as LLVM instructions: a few rows of activations by 64 columns of weights.

Activations are signed bytes with a scale for every group of 64 inputs, weights unsigned numbers of eight or four bits.
Sums within a group (or half a group, of four bits) are whole numbers and groups are added in order, so a row comes out
the same in a tile of any height.
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
    at,
    fetch,
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
_HALVES = ir.VectorType(F16, LANES)


def make_tile(num_rows: int, num_vectors: int, dot: Dot, bits: int) -> Any:
    """A function for compiled code: `num_rows` rows by `num_vectors` * 16 columns, over some groups of the inputs.

    tile(rows, x, y, w, groups, adds, ahead), addresses as integers: `rows` of the numbers of the rows; x is (values,
    bytes a row, scales, bytes a row, offsets, sums), y (values, bytes a row), w (packed weights, scales of columns),
    groups (first, end, all of the matrix). Sums go on from what is in y where `adds`. Meanwhile as many weights are
    fetched into the cache from each of the addresses `ahead`, one for a vector, which stand to the groups as w does.
    """
    kind = _ByteTile if bits == 8 else _NibbleTile

    @intrinsic
    def tile(context: Any, rows: Any, x: Any, y: Any, w: Any, groups: Any, adds: Any, ahead: Any) -> Any:
        signature = types.void(rows, x, y, w, groups, adds, ahead)

        def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:
            kind(b, num_rows, num_vectors, dot).emit(*args)
            return context.get_dummy_value()

        return signature, codegen

    return tile


class _Tile(ABC):
    """The instructions of one tile; `emit` leaves the builder behind them."""

    weight_bytes: int
    """Of a group of inputs by a vector of columns."""
    scale_bytes: int

    def __init__(self, b: Builder, num_rows: int, num_vectors: int, dot: Dot) -> None:
        self.b, self.dot = b, dot
        self.rows, self.vectors = range(num_rows), range(num_vectors)
        self.cells = [(r, c) for r in self.rows for c in self.vectors]

    def emit(self, rows: Value, x: Value, y: Value, w: Value, groups: Value, adds: Value, ahead: Value) -> None:
        b = self.b
        index = [b.load(at(b, rows, 8 * r, I64)) for r in self.rows]
        x_at, x_step, scales_at, scales_step, offsets_at, sums_at = (b.extract_value(x, i) for i in range(6))
        self.x = [b.add(x_at, b.mul(i, x_step)) for i in index]
        self.scales = [b.add(scales_at, b.mul(i, scales_step)) for i in index]
        self.offsets = [b.add(offsets_at, b.mul(i, scales_step)) for i in index]
        self.sums = [b.add(sums_at, b.mul(b.mul(i, scales_step), word(2))) for i in index]
        y_at, y_step = (b.extract_value(y, i) for i in range(2))
        y_rows = [b.add(y_at, b.mul(i, y_step)) for i in index]
        first, end, num_groups = (b.extract_value(groups, i) for i in range(3))
        self.ahead = [b.extract_value(ahead, c) for c in self.vectors]
        self.weights = self._columns(b.extract_value(w, 0), num_groups, self.weight_bytes)
        self.column_scales = self._columns(b.extract_value(w, 1), num_groups, self.scale_bytes)
        is_kept = b.icmp_signed("!=", adds, word(0))
        starts = [b.select(is_kept, load(b, y_rows[r], 64 * c, FLOATS), ZEROS) for r, c in self.cells]
        for (r, c), total in zip(self.cells, self.add_groups(first, end, starts), strict=True):
            store(b, total, y_rows[r], 64 * c)

    def _columns(self, address: Value, num_groups: Value, num_bytes: int) -> list[Value]:
        stride = self.b.mul(num_groups, word(num_bytes))
        return [self.b.add(address, self.b.mul(stride, word(c))) for c in self.vectors]

    @abstractmethod
    def add_groups(self, first: Value, end: Value, starts: list[Value]) -> list[Value]:
        """Totals of all cells after the groups `first` … `end` - 1, begun at `starts`."""

    def _fetch(self, place: Value) -> None:
        for address in self.ahead:
            fetch(self.b, address, place)

    def _broadcast(self, addresses: list[Value], place: Value, kinds: tuple[Any, Any]) -> list[Value]:
        return [splat(self.b, load(self.b, address, place, kinds[0]), kinds[1]) for address in addresses]


class _ByteTile(_Tile):
    """Weights are the signed value plus 128; one load brings four inputs of 16 columns."""

    weight_bytes = GROUP_LEN * LANES
    scale_bytes = 4 * LANES

    def add_groups(self, first: Value, end: Value, starts: list[Value]) -> list[Value]:
        b, before = self.b, self.b.block
        loop, inner, after, done = (b.append_basic_block() for _ in range(4))
        b.branch(loop)
        b.position_at_end(loop)
        group = phi(b, I64, first, before)
        totals = [phi(b, FLOATS, start, before) for start in starts]
        place, first_input = b.mul(group, word(4)), b.mul(group, word(GROUP_LEN))
        offsets = self._broadcast(self.offsets, place, (I32, INTS))
        b.branch(inner)
        b.position_at_end(inner)
        sums = self._one_group(first_input, offsets, (loop, inner, after))
        b.position_at_end(after)
        scales = self._broadcast(self.scales, place, (F32, FLOATS))
        columns = [load(b, at_c, b.mul(group, word(self.scale_bytes)), FLOATS) for at_c in self.column_scales]
        found = []
        for (r, c), total, whole in zip(self.cells, totals, sums, strict=True):
            found.append(fma(b, b.fmul(b.sitofp(whole, FLOATS), scales[r]), columns[c], total))
            total.add_incoming(found[-1], after)
        following = b.add(group, word(1))
        group.add_incoming(following, after)
        b.cbranch(b.icmp_signed("<", following, end), loop, done)
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
            place = b.mul(k4, word(LANES))
            weights = [load(b, self.weights[c], place, INTS) for c in self.vectors]
            self._fetch(place)
            for r, x in enumerate(self._broadcast(self.x, k4, (I32, INTS))):
                for c in self.vectors:
                    sums[r, c] = self.dot(b, sums[r, c], weights[c], x)
        following = b.add(k, word(4 * _UNROLL))
        k.add_incoming(following, inner)
        for head, cell in zip(heads, self.cells, strict=True):
            head.add_incoming(sums[cell], inner)
        b.cbranch(b.icmp_signed("<", following, word(GROUP_LEN)), inner, after)
        return list(sums.values())


class _NibbleTile(_Tile):
    """Weights are 0 … 15, with a scale and a least value for every 32 inputs, both in half precision; one load brings
    eight inputs of 16 columns, the first four in the low nibbles."""

    weight_bytes = GROUP_LEN * LANES // 2
    scale_bytes = 8 * LANES

    def add_groups(self, first: Value, end: Value, starts: list[Value]) -> list[Value]:
        """Turn by turn over half groups; the least value counts as often as the row's inputs sum up to."""
        b, before = self.b, self.b.block
        first_half, end_half = b.mul(first, word(2)), b.mul(end, word(2))
        loop, done = (b.append_basic_block() for _ in range(2))
        b.branch(loop)
        b.position_at_end(loop)
        half = phi(b, I64, first_half, before)
        totals = [phi(b, FLOATS, start, before) for start in starts]
        sums = self._one_half(half)
        scales = self._broadcast(self.scales, b.mul(b.sdiv(half, word(2)), word(4)), (F32, FLOATS))
        row_sums = self._broadcast(self.sums, b.mul(half, word(4)), (F32, FLOATS))
        steps, least = (self._widened(half, offset) for offset in (0, 2 * LANES))
        found = []
        for (r, c), total in zip(self.cells, totals, strict=True):
            part = fma(b, b.fmul(b.sitofp(sums[r, c], FLOATS), scales[r]), steps[c], total)
            found.append(fma(b, row_sums[r], least[c], part))
            total.add_incoming(found[-1], loop)
        following = b.add(half, word(1))
        half.add_incoming(following, loop)
        b.cbranch(b.icmp_signed("<", following, end_half), loop, done)
        b.position_at_end(done)
        return found

    def _widened(self, half: Value, offset: int) -> list[Value]:
        b = self.b
        place = b.add(b.mul(half, word(self.scale_bytes // 2)), word(offset))
        return [b.fpext(load(b, address, place, _HALVES), FLOATS) for address in self.column_scales]

    def _one_half(self, half: Value) -> dict[tuple[int, int], Value]:
        """Whole-number sums over 32 inputs."""
        b = self.b
        sums = dict.fromkeys(self.cells, ir.Constant(INTS, [0] * LANES))
        low = ir.Constant(INTS, [0x0F0F0F0F] * LANES)
        for step in range(4):
            place = b.add(b.mul(half, word(self.weight_bytes // 2)), word(4 * LANES * step))
            packed = [load(b, self.weights[c], place, INTS) for c in self.vectors]
            self._fetch(place)
            for part, shift in enumerate((0, 4)):
                weights = [b.and_(b.lshr(p, ir.Constant(INTS, [shift] * LANES)), low) for p in packed]
                k4 = b.add(b.mul(half, word(GROUP_LEN // 2)), word(8 * step + 4 * part))
                for r, x in enumerate(self._broadcast(self.x, k4, (I32, INTS))):
                    for c in self.vectors:
                        sums[r, c] = self.dot(b, sums[r, c], weights[c], x)
        return sums
