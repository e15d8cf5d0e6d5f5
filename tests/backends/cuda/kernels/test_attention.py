"""Paged attention equals SDPA, with and without draft trees."""

from __future__ import annotations

import pytest

from tests.support import kernel_checks as checks

# The interpreter evaluates both branches of `where` in numpy, which warns about the unused one.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize(
    ("seed", "heads", "splits", "block_m"),
    [(0, (6, 2, 32), 1, 64), (2, (4, 4, 16), 2, 64), (0, (6, 2, 32), 1, 128), (1, (4, 4, 16), 2, 128)],
)
def test_attention_equals_sdpa_on_ragged_batches(
    seed: int, heads: tuple[int, int, int], splits: int, block_m: int
) -> None:
    checks.check_attention(seed, heads, splits, block_m)


@pytest.mark.parametrize(("splits", "past"), [(1, 77), (4, 20), (4, 118)])
def test_rows_with_keys_in_scratch_slots_equal_rows_in_pages(splits: int, past: int) -> None:
    checks.check_tree_attention(0, (6, 2, 16), splits, past)
