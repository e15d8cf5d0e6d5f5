"""int4 rounding: 16 even steps per group, two values per byte."""

from __future__ import annotations

import torch

from quicksilver.model.formats.int4 import pack_nibbles, quantise_int4, unpack_nibbles
from tests.support.int4_words import dequantise_int4


def test_the_even_column_is_in_the_low_nibble() -> None:
    values = torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8)
    assert pack_nibbles(values).tolist() == [[0x21, 0x0F]]
    assert torch.equal(unpack_nibbles(pack_nibbles(values)), values.int())


def test_the_error_is_about_half_a_step_and_even_steps_are_exact() -> None:
    weight = torch.randn(8, 128)
    q, scale, zero = quantise_int4(weight, 32)
    dequantised = dequantise_int4(q, scale, zero)
    steps = (dequantised - weight).abs().unflatten(1, (-1, 32)) / scale.float()[..., None]
    assert steps.max() < 0.6
    again = quantise_int4(dequantised, 32)
    assert (unpack_nibbles(again[0]) - unpack_nibbles(q)).abs().max() <= 1
    torch.testing.assert_close(dequantise_int4(*again), dequantised, rtol=0.02, atol=0.02)
    on_grid = (torch.randint(0, 16, (8, 128)).float() - 8) * 0.25
    on_grid[:, ::32], on_grid[:, 1::32] = -2.0, 1.75
    assert torch.equal(dequantise_int4(*quantise_int4(on_grid, 32)), on_grid)


def test_rows_of_zeros_stay_zero() -> None:
    assert dequantise_int4(*quantise_int4(torch.zeros(4, 64), 32)).abs().max() < 1e-30
