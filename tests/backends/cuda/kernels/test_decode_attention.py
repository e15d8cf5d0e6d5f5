"""Attention of tiles with few rows equals SDPA, whatever the number of splits, and does not depend on the batch."""

from __future__ import annotations

import pytest

from quicksilver.backends.cuda.kernels.decode_attention import decode_shape
from tests.support import kernel_checks as checks

# The interpreter evaluates both branches of `where` in numpy, which warns about the unused one.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize(
    ("seed", "heads", "splits", "block_m"),
    [(0, (6, 2, 32), 1, 16), (2, (4, 4, 16), 4, 16), (0, (6, 2, 32), 2, 32)],
)
def test_decode_attention_equals_sdpa_on_ragged_batches(
    seed: int, heads: tuple[int, int, int], splits: int, block_m: int
) -> None:
    checks.check_attention(seed, heads, splits, block_m, is_decode=True)


def test_decode_attention_is_batch_invariant() -> None:
    checks.check_attention_is_batch_invariant(3, 16, is_decode=True)


@pytest.mark.parametrize(
    ("heads", "num_sequences", "rows_each", "block_m", "splits", "split_keys"),
    [
        ((12, 2, 128), 64, 1, 16, 4, 128),
        ((12, 2, 128), 512, 1, 16, 2, 1024),
        ((32, 8, 128), 128, 8, 32, 2, 1024),
        ((32, 8, 128), 1, 16, 64, 16, 128),
    ],
)
def test_shape_follows_the_number_of_sequences(
    heads: tuple[int, int, int], num_sequences: int, rows_each: int, block_m: int, splits: int, split_keys: int
) -> None:
    shape = decode_shape(*heads, num_sequences, rows_each)
    assert shape is not None
    assert (shape.block_m, shape.splits, shape.split_keys) == (block_m, splits, split_keys)
    assert shape.tile_rows >= rows_each


def test_large_tiles_are_left_to_the_general_kernel() -> None:
    assert decode_shape(32, 2, 128, 4, 8) is None
