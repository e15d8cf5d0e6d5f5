"""Rows times a packed matrix, each thread its own columns; and the packing.

A packed matrix is (columns / 16, inputs / 4, 16 columns, 4 inputs) of unsigned bytes, and its scales are
(columns / 16, groups, 16 columns): a tile reads both from end to end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quicksilver.model.native.compiled import inner
from quicksilver.model.native.rows import Floats, Rounded, whole_groups
from quicksilver.model.native.scalar import address_of
from quicksilver.model.native.support import has_vnni
from quicksilver.model.native.tile import GROUP_LEN, STRIP, dot_avx2, dot_vnni, make_tile

_ALIGN = 64
_TALL, _WIDE = (4, 4) if has_vnni() else (2, 1)
"""Rows and vectors of a full tile: what the registers hold."""
_dot = dot_vnni if has_vnni() else dot_avx2
_tall_tile = make_tile(_TALL, _WIDE, _dot)
_pair_tile = make_tile(2, _WIDE, _dot)
_row_tile = make_tile(1, _WIDE, _dot)


class Matrix(NamedTuple):
    """Where a packed matrix lies, for compiled code."""

    weights: int
    scales: int
    num_groups: int
    num_strips: int


def pack(q: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """q (out, in) int8 and scale (out, groups) -> both as compiled code reads them, aligned to cache lines."""
    out_dim, in_dim = q.shape
    num_columns, width = -(-out_dim // STRIP) * STRIP, whole_groups(in_dim)
    packed = aligned((num_columns // 16, width // 4, 16, 4), torch.uint8).fill_(128)
    whole = torch.full((num_columns, width), 128, dtype=torch.uint8)
    whole[:out_dim, :in_dim] = q.view(torch.uint8) ^ 128
    packed.copy_(whole.view(num_columns // 16, 16, width // 4, 4).transpose(1, 2))
    whole_scale = torch.zeros(num_columns, width // GROUP_LEN)
    whole_scale[:out_dim] = scale
    scales = aligned((num_columns // 16, width // GROUP_LEN, 16), torch.float32)
    return packed, scales.copy_(whole_scale.view(num_columns // 16, 16, -1).transpose(1, 2))


def aligned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Uninitialised, at a multiple of 64 bytes."""
    num_bytes = int(np.prod(shape)) * dtype.itemsize
    room = torch.empty(num_bytes + _ALIGN, dtype=torch.uint8)
    start = -room.data_ptr() % _ALIGN
    return room[start : start + num_bytes].view(dtype).view(shape)


@inner
def share(count: int, thread: int, num_threads: int) -> tuple[int, int]:
    """This thread's part of `count` things."""
    return count * thread // num_threads, count * (thread + 1) // num_threads


@inner
def multiply(
    x: Rounded, matrix: NDArray[np.int64], rows: NDArray[np.int64], y: Floats, strips: tuple[int, int], adds: int
) -> None:
    """y[rows, columns of `strips`] = (or, where `adds`, +=) x[rows] times the matrix (a row of numbers as `Matrix`)."""
    source = (
        address_of(x.values), x.values.shape[1], address_of(x.scales), 4 * x.scales.shape[1], address_of(x.offsets),
    )  # fmt: skip
    weights, scales, num_groups = matrix[0], matrix[1], matrix[2]
    base, count = address_of(rows), len(rows)
    for part in range(strips[0] * (4 // _WIDE), strips[1] * (4 // _WIDE)):
        column = part * 16 * _WIDE
        target = (address_of(y) + 4 * column, 4 * y.shape[1])
        held = (weights + column * num_groups * GROUP_LEN, scales + 4 * column * num_groups)
        first = 0
        while first + _TALL <= count:
            _tall_tile(base + 8 * first, source, target, held, num_groups, adds)
            first += _TALL
        if first + 2 <= count:
            _pair_tile(base + 8 * first, source, target, held, num_groups, adds)
            first += 2
        if first < count:
            _row_tile(base + 8 * first, source, target, held, num_groups, adds)
