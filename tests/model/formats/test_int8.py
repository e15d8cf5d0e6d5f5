"""int8 rounding: half a step of error at most, per row or per group."""

from __future__ import annotations

import pytest
import torch

from quicksilver.model.formats.int8 import quantise_int8, quantise_int8_groups


def test_the_error_is_at_most_half_a_step_of_each_row() -> None:
    weight = torch.randn(9, 64) * torch.logspace(-3, 3, 9)[:, None]
    q, scale = quantise_int8(weight)
    dequantised = q.float() * scale[:, None]
    assert ((dequantised - weight).abs() <= 0.5001 * scale[:, None]).all()
    again, scale_again = quantise_int8(dequantised)
    assert torch.equal(again, q)
    torch.testing.assert_close(scale_again, scale)


def test_rows_of_zeros_stay_zero() -> None:
    q, scale = quantise_int8(torch.zeros(4, 64))
    assert torch.equal(q.float() * scale[:, None], torch.zeros(4, 64))


@pytest.mark.parametrize("cols", [64, 128, 130, 5])
def test_each_group_has_its_own_scale_and_the_last_may_be_short(cols: int) -> None:
    weight = torch.randn(3, cols)
    q, scale = quantise_int8_groups(weight, 64)
    assert q.shape == weight.shape
    assert scale.shape == (3, -(-cols // 64))
    for group in range(scale.shape[1]):
        part = slice(64 * group, 64 * (group + 1))
        wanted, wanted_scale = quantise_int8(weight[:, part])
        assert torch.equal(q[:, part], wanted)
        assert torch.equal(scale[:, group], wanted_scale)
