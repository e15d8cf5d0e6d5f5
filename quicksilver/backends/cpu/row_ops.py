"""Operations on one row between two matmuls: RMSNorm, rotation, SwiGLU, and quantisation to int8 in groups.

Each function reads and writes one row, or one head of it. NaN stays NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quicksilver.backends.cpu.intrinsics import address_of, exp32
from quicksilver.backends.cpu.jit import inner
from quicksilver.backends.cpu.matmul_tile import GROUP_LEN
from quicksilver.backends.cpu.vector_ops import quantise_group, sum_of_squares

Floats = NDArray[np.float32]


class QuantisedRows(NamedTuple):
    """Activations as int8 with one scale per group of 64 inputs, and the sums that the matmul needs."""

    values: NDArray[np.int8]  # (rows, width), width a multiple of the group length
    scales: Floats  # (rows, groups)
    offsets: NDArray[np.int32]  # (rows, groups): -128 * sum of the group; cancels the offset of int8 weights
    sums: Floats  # (rows, 2 * groups): dequantised sum of each half group; multiplies the minimum of 4-bit weights


def empty_quantised(num_rows: int, width: int) -> QuantisedRows:
    num_groups = padded_len(width) // GROUP_LEN
    return QuantisedRows(
        np.zeros((num_rows, num_groups * GROUP_LEN), np.int8),
        np.zeros((num_rows, num_groups), np.float32),
        np.zeros((num_rows, num_groups), np.int32),
        np.zeros((num_rows, 2 * num_groups), np.float32),
    )


def padded_len(width: int) -> int:
    """`width` rounded up to a multiple of the group length."""
    return -(-width // GROUP_LEN) * GROUP_LEN


@inner
def quantise_row(x: Floats, out: QuantisedRows, row: int) -> None:
    """Quantise `x`, whose length is a multiple of the group length, into row `row` of `out`."""
    source, values = address_of(x), address_of(out.values[row])
    scales, offsets, sums = address_of(out.scales[row]), address_of(out.offsets[row]), address_of(out.sums[row])
    for group in range(len(x) // GROUP_LEN):
        start = group * GROUP_LEN
        quantise_group(source + 4 * start, values + start, scales + 4 * group, offsets + 4 * group, sums + 8 * group)


@inner
def norm_row(x: Floats, gain: Floats, eps: float, out: Floats) -> None:
    """Root-mean-square norm; `out` may be `x`."""
    total = sum_of_squares(address_of(x), np.int64(len(gain)))
    factor = np.float32(1) / np.sqrt(total / np.float32(len(gain)) + np.float32(eps))
    for i in range(len(gain)):
        out[i] = x[i] * factor * gain[i]


@inner
def add_row(x: Floats, y: Floats) -> None:
    """x += y, over the length of x."""
    for i in range(len(x)):
        x[i] += y[i]


@inner
def swiglu_row(y: Floats, ffn_dim: int, out: Floats) -> None:
    """silu(gate) * up, where y = (gate, up)."""
    gate, up = y[:ffn_dim], y[ffn_dim : 2 * ffn_dim]
    for i in range(len(gate)):
        out[i] = gate[i] / (np.float32(1) + exp32(-gate[i])) * up[i]


@inner
def clear_row(x: Floats) -> None:
    for i in range(len(x)):
        x[i] = 0


@inner
def rotate_head(x: Floats, cos: Floats, sin: Floats) -> None:
    """Rotary embedding in rotate-half form, in place."""
    half = len(x) // 2
    left, right = x[:half], x[half:]
    for i in range(len(left)):
        old = left[i]
        left[i] = old * cos[i] - right[i] * sin[i]
        right[i] = right[i] * cos[i] + old * sin[i]
