"""Tiles with AVX2 and with AVX-512 VNNI compute the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quicksilver.backends.cpu.support import has_vnni, unsupported_reason

if unsupported_reason() is not None:
    pytest.skip(f"compiled CPU backend: {unsupported_reason()}", allow_module_level=True)

from quicksilver.backends.cpu.int8_dot import dot_avx2, dot_vnni
from quicksilver.backends.cpu.intrinsics import address_of
from quicksilver.backends.cpu.jit import inner
from quicksilver.backends.cpu.matmul import pack
from quicksilver.backends.cpu.matmul_tile import make_tile
from quicksilver.backends.cpu.row_ops import empty_quantised, quantise_row
from quicksilver.model.formats.int8 import quantise_int8_groups
from tests.backends.cpu.build import random_int4_linear


@pytest.mark.skipif(not has_vnni(), reason="compares with AVX-512 VNNI")
@pytest.mark.parametrize("bits", [8, 4])
def test_avx2_and_vnni_give_the_same_bits(bits: int) -> None:
    narrow, wide = make_tile(2, 1, dot_avx2, bits), make_tile(2, 1, dot_vnni, bits)

    @inner
    def run(rows, source, y, weights, ahead):  # type: ignore[no-untyped-def]
        narrow(address_of(rows), source, (address_of(y), 4 * y.shape[1]), weights, (0, 3, 3), 0, ahead)
        wide(address_of(rows), source, (address_of(y) + 64, 4 * y.shape[1]), weights, (0, 3, 3), 0, ahead)

    bytes_of = pack(*quantise_int8_groups(torch.randn(16, 192), 64))
    nibbles = random_int4_linear(16, 192)[0]
    packed, scales = bytes_of if bits == 8 else (nibbles.packed, nibbles.scales)
    x = empty_quantised(2, 192)
    for row in range(2):
        quantise_row(np.random.default_rng(row).standard_normal(192).astype(np.float32), x, row)
    source = (x.values.ctypes.data, 192, x.scales.ctypes.data, 12, x.offsets.ctypes.data, x.sums.ctypes.data)
    y = np.zeros((2, 32), np.float32)
    run(np.arange(2), source, y, (packed.data_ptr(), scales.data_ptr()), (packed.data_ptr(),))
    assert np.abs(y).min() > 0
    assert np.array_equal(y[:, :16], y[:, 16:])
