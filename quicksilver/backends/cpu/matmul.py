"""Matmul of quantised rows with a packed matrix, and the packing of int8 and 4-bit weights.

An int8 matrix is packed as (columns / 16, inputs / 4, 16 columns, 4 inputs) unsigned bytes, with scales as
(columns / 16, groups, 16 columns) fp32, so that a tile reads both sequentially. In a 4-bit matrix the low nibble of a
byte holds input i and the high nibble holds input i + 4. Each half group of 32 inputs has an fp16 scale, followed by
its fp16 minimum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quicksilver.backends.cpu.int8_dot import dot_avx2, dot_vnni
from quicksilver.backends.cpu.intrinsics import address_of
from quicksilver.backends.cpu.jit import inner
from quicksilver.backends.cpu.matmul_tile import GROUP_LEN, STRIP_LEN, make_tile
from quicksilver.backends.cpu.row_ops import Floats, QuantisedRows, padded_len
from quicksilver.backends.cpu.support import has_vnni
from quicksilver.model.lazy_memory import zero_bytes

_CACHE_LINE = 64
# Rows and vectors of a full tile: as many accumulators as fit in the registers of AVX-512 or AVX2.
_TILE_ROWS, _TILE_VECTORS = (4, 4) if has_vnni() else (2, 1)
# Groups of a weight block: 24 * 64 inputs by 64 columns are 96 KB, and two blocks fit in a second-level cache.
_BLOCK_GROUPS = 24
# Prefetch distance in bytes of a tile without a neighbour in the same block. Software prefetch is needed because
# hardware prefetchers stop at the end of a 4 KiB page.
_PREFETCH_BYTES = 4096
_dot = dot_vnni if has_vnni() else dot_avx2
_full_int8, _two_rows_int8, _one_row_int8 = (make_tile(rows, _TILE_VECTORS, _dot, 8) for rows in (_TILE_ROWS, 2, 1))
_full_int4, _two_rows_int4, _one_row_int4 = (make_tile(rows, _TILE_VECTORS, _dot, 4) for rows in (_TILE_ROWS, 2, 1))
# QuantisedRows in the form that tile functions take as an argument: see `matmul_tile.make_tile`.
Activations = tuple[int, int, int, int, int, int]
# Addresses to prefetch from, one per vector of a tile. Tiles of fewer vectors use the first ones.
Prefetch = tuple[int, int, int, int]


class Matrix(NamedTuple):
    """A packed matrix as compiled code takes it."""

    weights: int  # address
    scales: int  # address
    num_groups: int
    num_strips: int
    bits: int  # 8 or 4


def pack(q: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """q (out, in) int8 and scale (out, groups) -> packed weights and scales, aligned to cache lines."""
    out_dim, in_dim = q.shape
    num_columns, width = -(-out_dim // STRIP_LEN) * STRIP_LEN, padded_len(in_dim)
    packed = aligned_empty((num_columns // 16, width // 4, 16, 4), torch.uint8).fill_(128)
    whole = torch.full((num_columns, width), 128, dtype=torch.uint8)
    whole[:out_dim, :in_dim] = q.view(torch.uint8) ^ 128
    packed.copy_(whole.view(num_columns // 16, 16, width // 4, 4).transpose(1, 2))
    whole_scale = torch.zeros(num_columns, width // GROUP_LEN)
    whole_scale[:out_dim] = scale
    scales = aligned_empty((num_columns // 16, width // GROUP_LEN, 16), torch.float32)
    return packed, scales.copy_(whole_scale.view(num_columns // 16, 16, -1).transpose(1, 2))


def pack_int4(q: Tensor, scale: Tensor, minimum: Tensor) -> tuple[Tensor, Tensor]:
    """q (out, in) of 0 … 15, scale and minimum (out, in / 32), with weight = q * scale + minimum -> as `pack`."""
    out_dim, in_dim = q.shape
    num_columns, width = -(-out_dim // STRIP_LEN) * STRIP_LEN, padded_len(in_dim)
    whole = torch.zeros(num_columns, width, dtype=torch.uint8)
    whole[:out_dim, :in_dim] = q
    pairs = whole.view(num_columns // 16, 16, width // 8, 2, 4)
    packed = aligned_empty((num_columns // 16, width // 8, 16, 4), torch.uint8)
    packed.copy_((pairs[:, :, :, 0] | pairs[:, :, :, 1] << 4).transpose(1, 2))
    both = torch.zeros(num_columns, width // 32, 2, dtype=torch.float16)
    both[:out_dim, : in_dim // 32] = torch.stack((scale, minimum), 2).half()
    scales = aligned_empty((num_columns // 16, width // 32, 2, 16), torch.float16)
    return packed, scales.copy_(both.view(num_columns // 16, 16, -1, 2).permute(0, 2, 3, 1))


def aligned_empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor whose address is a multiple of 64 bytes."""
    num_bytes = int(np.prod(shape)) * dtype.itemsize
    buffer = zero_bytes(num_bytes + _CACHE_LINE)
    start = -buffer.data_ptr() % _CACHE_LINE
    return buffer[start : start + num_bytes].view(dtype).view(shape)


@inner
def multiply(
    x: QuantisedRows,
    matrix: NDArray[np.int64],
    rows: NDArray[np.int64],
    y: Floats,
    strips: tuple[int, int],
    accumulate: int,
) -> None:
    """y[rows, columns of `strips`] = x[rows] W, or += if `accumulate`. `matrix` is an array of the fields of `Matrix`.

    The weights are processed in blocks that stay in the cache until all rows have used them.
    """
    source = (
        address_of(x.values), x.values.shape[1],
        address_of(x.scales), 4 * x.scales.shape[1], address_of(x.offsets), address_of(x.sums),
    )  # fmt: skip
    weights, scales, num_groups, bits = matrix[0], matrix[1], matrix[2], matrix[4]
    group_bytes, scale_bytes = (1024, 64) if bits == 8 else (512, 128)
    for part in range(strips[0] * (4 // _TILE_VECTORS), strips[1] * (4 // _TILE_VECTORS)):
        groups_before = part * _TILE_VECTORS * num_groups
        start = (weights + groups_before * group_bytes, scales + groups_before * scale_bytes)
        target = (address_of(y) + 64 * _TILE_VECTORS * part, 4 * y.shape[1])
        for first in range(0, num_groups, _BLOCK_GROUPS):
            groups = (first, min(first + _BLOCK_GROUPS, num_groups), num_groups)
            _multiply_block(
                source, rows, WeightBlock(target, start, groups, group_bytes), np.int64(accumulate or first > 0)
            )


class WeightBlock(NamedTuple):
    """Some groups of some columns, and where their sums are written."""

    target: tuple[int, int]  # address and row stride of y
    weights: tuple[int, int]  # addresses of the packed weights and of the scales
    groups: tuple[int, int, int]  # first, end, groups of the whole matrix
    group_bytes: int


@inner
def _multiply_block(source: Activations, rows: NDArray[np.int64], block: WeightBlock, accumulate: int) -> None:
    """`_run_tile` is called in one place, because its many instructions are compiled per call site."""
    first, count, tile = 0, len(rows), 0
    while first < count:
        left = count - first
        height = _TILE_ROWS if left >= _TILE_ROWS else min(left, 2)
        prefetch = _prefetch_addresses(tile, count // _TILE_ROWS, block)
        _run_tile(height, address_of(rows) + 8 * first, source, block, accumulate, prefetch)
        first, tile = first + height, tile + 1


@inner
def _run_tile(
    height: int, rows: int, source: Activations, block: WeightBlock, accumulate: int, prefetch: Prefetch
) -> None:
    target, weights, groups, group_bytes = block
    if group_bytes == 1024:
        if height == _TILE_ROWS:
            _full_int8(rows, source, target, weights, groups, accumulate, prefetch)
        elif height == 2:
            _two_rows_int8(rows, source, target, weights, groups, accumulate, prefetch)
        else:
            _one_row_int8(rows, source, target, weights, groups, accumulate, prefetch)
    elif height == _TILE_ROWS:
        _full_int4(rows, source, target, weights, groups, accumulate, prefetch)
    elif height == 2:
        _two_rows_int4(rows, source, target, weights, groups, accumulate, prefetch)
    else:
        _one_row_int4(rows, source, target, weights, groups, accumulate, prefetch)


@inner
def _prefetch_addresses(tile: int, num_tiles: int, block: WeightBlock) -> Prefetch:
    """What a tile prefetches while it computes. An address that is in the cache already costs nothing.

    Several full tiles divide the next block among them. A lone tile is bound by memory and prefetches a little ahead
    in its own weights.
    """
    weights, stride = block.weights[0], block.groups[2] * block.group_bytes
    if num_tiles < 2:
        start = weights + _PREFETCH_BYTES
        return start, start + stride, start + 2 * stride, start + 3 * stride
    first, end, num_groups = block.groups
    # The last groups of these columns are followed by the first groups of the next columns.
    following = weights + (end - first) * block.group_bytes
    if end == num_groups:
        following = weights + _TILE_VECTORS * stride - first * block.group_bytes
    if num_tiles >= _TILE_VECTORS:
        only = following + tile * stride if tile < _TILE_VECTORS else weights
        return only, weights, weights, weights
    if tile < 2:
        return following + 2 * tile * stride, following + (2 * tile + 1) * stride, weights, weights
    return weights, weights, weights, weights
