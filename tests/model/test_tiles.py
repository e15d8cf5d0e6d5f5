"""Padding that makes matmuls on a CPU batch-invariant."""

from __future__ import annotations

import pytest
import torch

from quicksilver.model.tiles import min_invariant_rows, missing_rows, on_full_tiles
from quicksilver.model.visibility import ROW_TILE


@pytest.fixture(autouse=True)
def _inference() -> None:
    torch.manual_seed(0)


def test_a_row_has_the_same_bits_whatever_the_number_of_rows() -> None:
    linear = torch.nn.Linear(192, 96)
    x = torch.randn(37, 192)
    with torch.inference_mode():
        whole = on_full_tiles(linear, x)
        for count in (1, 2, 3, 5, 8, 17, 36):
            assert torch.equal(on_full_tiles(linear, x[:count]), whole[:count]), count


def test_rows_are_padded_to_full_tiles() -> None:
    least = min_invariant_rows()
    with torch.inference_mode():
        for count in range(1, 40):
            total = count + missing_rows(torch.zeros(count, 2), ROW_TILE)
            assert total >= least
            assert total % ROW_TILE == 0
        assert missing_rows(torch.zeros(5, 2), 1) == 0


def test_training_pads_nothing() -> None:
    assert missing_rows(torch.zeros(1, 2), ROW_TILE) == 0
