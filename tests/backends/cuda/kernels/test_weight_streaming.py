"""How linears of few rows are cut: the same for every number of rows, into shared memory and into the room for sums."""

from __future__ import annotations

import pytest

from quicksilver.backends.cuda.kernels.weight_streaming import (
    SHARED_BYTES,
    Cut,
    pick_cut,
    pick_rounded_cut,
    room_splits,
)

ROWS = (16, 32, 64)
SHAPES = [(tiles, k) for tiles in (1, 9, 12, 16, 20, 32, 48, 70, 140, 192, 384) for k in (512, 1536, 4096, 8960, 12288)]


def bytes_under_way(cut: Cut, rows: int, width: int) -> int:
    input_width = 1 if cut.group else max(width, 2)
    return (2 * cut.block_n * width + rows * input_width) * cut.block_k * cut.num_stages


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize(("tiles", "k"), SHAPES)
def test_cuts_fit_whatever_the_shape(tiles: int, k: int, width: int) -> None:
    cuts = {rows: pick_cut(64, tiles, k, rows, width) for rows in ROWS}
    assert len({cut.depth for cut in cuts.values()}) == 1
    for rows, cut in cuts.items():
        assert bytes_under_way(cut, rows, width) <= SHARED_BYTES
        assert cut.is_even(k)
        assert cut.splits(k) <= room_splits(tiles, k)


@pytest.mark.parametrize("group", [64, 128])
@pytest.mark.parametrize(("tiles", "k"), SHAPES)
def test_fp8_cuts_fit_whatever_the_shape(tiles: int, k: int, group: int) -> None:
    cuts = {rows: pick_rounded_cut(64, tiles, k, rows, group) for rows in ROWS}
    assert len({cut.depth for cut in cuts.values()}) == 1
    for rows, cut in cuts.items():
        assert bytes_under_way(cut, rows, 1) <= SHARED_BYTES
        assert cut.is_even(k)
        assert cut.block_k % group == 0
        assert cut.splits(k) <= room_splits(tiles, k)


@pytest.mark.parametrize(
    ("tiles", "k", "group", "rows", "expected"),
    [
        (48, 4096, 128, 16, (128, 2048, 6)),
        (32, 4096, 128, 16, (128, 1024, 9)),
        (192, 4096, 128, 16, (256, 4096, 3)),
        (32, 12288, 64, 16, (128, 1024, 4)),
        (192, 4096, 128, 32, (128, 4096, 5)),
        (12, 8960, 64, 16, (128, 896, 8)),
        (32, 12288, 0, 32, (64, 3072, 5)),
        (16, 1536, 0, 16, (128, 256, 3)),
        (12, 8960, 0, 16, (128, 896, 6)),
        (12, 8960, 0, 64, (128, 896, 4)),
    ],
)
def test_cuts_are_those_that_measured_best(
    tiles: int, k: int, group: int, rows: int, expected: tuple[int, int, int]
) -> None:
    cut = pick_rounded_cut(64, tiles, k, rows, group) if group else pick_cut(64, tiles, k, rows)
    assert (cut.block_k, cut.depth, cut.num_stages) == expected
