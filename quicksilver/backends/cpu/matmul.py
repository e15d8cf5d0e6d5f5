"""Rows times a packed matrix, each thread its own columns; and the packing.

A packed matrix is (columns / 16, inputs / 4, 16 columns, 4 inputs) of unsigned bytes, and its scales are
(columns / 16, groups, 16 columns): a tile reads both from end to end. Of four bits, a byte holds an input in its low
nibble and the fourth behind it in its high one; scales and least values lie side by side for half a group.
"""

from __future__ import annotations

import mmap
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quicksilver.backends.cpu.int8_dot import dot_avx2, dot_vnni
from quicksilver.backends.cpu.intrinsics import address_of
from quicksilver.backends.cpu.jit import inner
from quicksilver.backends.cpu.matmul_tile import GROUP_LEN, STRIP, make_tile
from quicksilver.backends.cpu.row_ops import Floats, Rounded, whole_groups
from quicksilver.backends.cpu.support import has_vnni

_ALIGN = 64
_LARGE = 4 << 20
"""Bytes from which memory is asked for in large pages."""
_TALL, _WIDE = (4, 4) if has_vnni() else (2, 1)
"""Rows and vectors of a full tile: what the registers hold."""
_DEPTH = 24
"""Groups of a piece: 96 KB of weights by 64 columns, two of which lie easily in a second-level cache."""
_dot = dot_vnni if has_vnni() else dot_avx2
_tall_tile, _pair_tile, _row_tile = (make_tile(rows, _WIDE, _dot, 8) for rows in (_TALL, 2, 1))
_tall_nibbles, _pair_nibbles, _row_nibbles = (make_tile(rows, _WIDE, _dot, 4) for rows in (_TALL, 2, 1))
Source = tuple[int, int, int, int, int, int]
"""Activations as a tile takes them."""
Ahead = tuple[int, int, int, int]
"""Addresses as a tile takes them; narrow tiles look at the first only."""
_AHEAD = 4096
"""Bytes: as far as the processor's own foresight goes, which ends with a page."""


class Matrix(NamedTuple):
    """Where a packed matrix lies, for compiled code."""

    weights: int
    scales: int
    num_groups: int
    num_strips: int
    bits: int


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


def pack_nibbles(q: Tensor, scale: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """q (out, in) of 0 … 15, scale and least (out, in / 32): weight = q * scale + least -> as `pack`."""
    out_dim, in_dim = q.shape
    num_columns, width = -(-out_dim // STRIP) * STRIP, whole_groups(in_dim)
    whole = torch.zeros(num_columns, width, dtype=torch.uint8)
    whole[:out_dim, :in_dim] = q
    pairs = whole.view(num_columns // 16, 16, width // 8, 2, 4)
    packed = aligned((num_columns // 16, width // 8, 16, 4), torch.uint8)
    packed.copy_((pairs[:, :, :, 0] | pairs[:, :, :, 1] << 4).transpose(1, 2))
    both = torch.zeros(num_columns, width // 32, 2, dtype=torch.float16)
    both[:out_dim, : in_dim // 32] = torch.stack((scale, least), 2).half()
    scales = aligned((num_columns // 16, width // 32, 2, 16), torch.float16)
    return packed, scales.copy_(both.view(num_columns // 16, 16, -1, 2).permute(0, 2, 3, 1))


def aligned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Uninitialised, at a multiple of 64 bytes."""
    num_bytes = int(np.prod(shape)) * dtype.itemsize
    room = _room(num_bytes + _ALIGN)
    start = -room.data_ptr() % _ALIGN
    return room[start : start + num_bytes].view(dtype).view(shape)


def _room(num_bytes: int) -> Tensor:
    """Weights are read from end to end: in large pages, where the system has them, that takes a tenth less time."""
    if num_bytes < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(num_bytes, dtype=torch.uint8)
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)


@inner
def multiply(
    x: Rounded, matrix: NDArray[np.int64], rows: NDArray[np.int64], y: Floats, strips: tuple[int, int], adds: int
) -> None:
    """y[rows, columns of `strips`] = (or, where `adds`, +=) x[rows] times the matrix (a row of numbers as `Matrix`).

    Goes through the weights in pieces that stay in the cache until all rows have read them."""
    source = (
        address_of(x.values), x.values.shape[1],
        address_of(x.scales), 4 * x.scales.shape[1], address_of(x.offsets), address_of(x.sums),
    )  # fmt: skip
    weights, scales, num_groups, bits = matrix[0], matrix[1], matrix[2], matrix[4]
    group_bytes, scale_bytes = (1024, 64) if bits == 8 else (512, 128)
    for part in range(strips[0] * (4 // _WIDE), strips[1] * (4 // _WIDE)):
        groups_before = part * _WIDE * num_groups
        held = (weights + groups_before * group_bytes, scales + groups_before * scale_bytes)
        target = (address_of(y) + 64 * _WIDE * part, 4 * y.shape[1])
        for first in range(0, num_groups, _DEPTH):
            piece = Piece(target, held, (first, min(first + _DEPTH, num_groups), num_groups), group_bytes)
            _multiply_piece(source, rows, piece, np.int64(adds or first > 0))


class Piece(NamedTuple):
    """Some groups of some columns, and where their sums go."""

    target: tuple[int, int]
    held: tuple[int, int]
    groups: tuple[int, int, int]
    group_bytes: int


@inner
def _multiply_piece(source: Source, rows: NDArray[np.int64], piece: Piece, adds: int) -> None:
    """One call of `_run_tile`, so that its many instructions are compiled once."""
    first, count, tile = 0, len(rows), 0
    while first < count:
        left = count - first
        height = _TALL if left >= _TALL else min(left, 2)
        _run_tile(height, address_of(rows) + 8 * first, source, piece, adds, _ahead(tile, count // _TALL, piece))
        first, tile = first + height, tile + 1


@inner
def _run_tile(height: int, rows: int, source: Source, piece: Piece, adds: int, ahead: Ahead) -> None:
    target, held, groups, group_bytes = piece
    if group_bytes == 1024:
        if height == _TALL:
            _tall_tile(rows, source, target, held, groups, adds, ahead)
        elif height == 2:
            _pair_tile(rows, source, target, held, groups, adds, ahead)
        else:
            _row_tile(rows, source, target, held, groups, adds, ahead)
    elif height == _TALL:
        _tall_nibbles(rows, source, target, held, groups, adds, ahead)
    elif height == 2:
        _pair_nibbles(rows, source, target, held, groups, adds, ahead)
    else:
        _row_nibbles(rows, source, target, held, groups, adds, ahead)


@inner
def _ahead(tile: int, num_tiles: int, piece: Piece) -> Ahead:
    """What a tile fetches meanwhile. The full tiles of a piece share the piece behind it; a lone tile waits for its own
    weights, and fetches those a little ahead; what else is fetched is there already."""
    weights, stride = piece.held[0], piece.groups[2] * piece.group_bytes
    if num_tiles < 2:
        start = weights + _AHEAD
        return start, start + stride, start + 2 * stride, start + 3 * stride
    first, end, num_groups = piece.groups
    # Behind the last groups of these columns come the first ones of the next.
    following = weights + (end - first) * piece.group_bytes
    if end == num_groups:
        following = weights + _WIDE * stride - first * piece.group_bytes
    if num_tiles >= _WIDE:
        only = following + tile * stride if tile < _WIDE else weights
        return only, weights, weights, weights
    if tile < 2:
        return following + 2 * tile * stride, following + (2 * tile + 1) * stride, weights, weights
    return weights, weights, weights, weights
