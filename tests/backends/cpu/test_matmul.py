"""Packing of weights, and memory for them."""

from __future__ import annotations

import pytest
import torch

from quicksilver.backends.cpu.support import unsupported_reason

if unsupported_reason() is not None:
    pytest.skip(f"compiled CPU backend: {unsupported_reason()}", allow_module_level=True)

from quicksilver.backends.cpu.matmul import aligned_empty, pack, pack_int4


def test_small_and_large_buffers_are_aligned_to_cache_lines() -> None:
    for num_bytes in (1000, 9 << 20):
        buffer = aligned_empty((num_bytes,), torch.uint8).fill_(7)
        assert buffer.data_ptr() % 64 == 0
        assert int(buffer[-1]) == 7


def test_int8_weights_are_stored_by_16_columns_and_4_inputs_with_an_offset_of_128() -> None:
    q = torch.randint(-127, 128, (70, 100), dtype=torch.int8)
    packed, scales = pack(q, torch.rand(70, 2))
    assert (packed.shape, scales.shape) == ((128 // 16, 128 // 4, 16, 4), (128 // 16, 2, 16))
    for column, row in ((0, 0), (17, 5), (69, 99)):
        assert int(packed[column // 16, row // 4, column % 16, row % 4]) == int(q[column, row]) + 128
    assert int(packed[100 // 16, 3, 100 % 16, 0]) == 128, "columns of padding are zero"


def test_int4_weights_share_a_byte_with_the_input_four_further_on() -> None:
    q = torch.randint(0, 16, (64, 64), dtype=torch.uint8)
    scale, minimum = torch.rand(64, 2), torch.rand(64, 2)
    packed, scales = pack_int4(q, scale, minimum)
    byte = int(packed[1, 2, 3, 1])
    assert (byte & 15, byte >> 4) == (int(q[19, 17]), int(q[19, 21]))
    assert scales[1, 1, :, 3].tolist() == [scale[19, 1].half(), minimum[19, 1].half()]
