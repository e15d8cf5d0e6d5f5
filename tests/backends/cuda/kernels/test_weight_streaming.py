"""Tiling of small-batch linears: independent of the number of rows, within shared memory and the split-K buffers."""

from __future__ import annotations

import pytest

from quicksilver.backends.cuda.kernels.weight_streaming import (
    SHARED_BYTES,
    Tiling,
    max_splits,
    pick_fp8_tiling,
    pick_tiling,
)

ROWS = (16, 32, 64)
SHAPES = [(tiles, k) for tiles in (1, 9, 12, 16, 20, 32, 48, 70, 140, 192, 384) for k in (512, 1536, 4096, 8960, 12288)]


def stage_bytes(tiling: Tiling, rows: int, width: int) -> int:
    input_width = 1 if tiling.group else max(width, 2)
    return (2 * tiling.block_n * width + rows * input_width) * tiling.block_k * tiling.num_stages


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize(("tiles", "k"), SHAPES)
def test_tilings_fit_every_shape(tiles: int, k: int, width: int) -> None:
    tilings = {rows: pick_tiling(64, tiles, k, rows, width) for rows in ROWS}
    assert len({tiling.depth for tiling in tilings.values()}) == 1
    for rows, tiling in tilings.items():
        assert stage_bytes(tiling, rows, width) <= SHARED_BYTES
        assert tiling.is_even(k)
        assert tiling.splits(k) <= max_splits(tiles, k)


@pytest.mark.parametrize("group", [64, 128])
@pytest.mark.parametrize(("tiles", "k"), SHAPES)
def test_fp8_tilings_fit_every_shape(tiles: int, k: int, group: int) -> None:
    tilings = {rows: pick_fp8_tiling(64, tiles, k, rows, group) for rows in ROWS}
    assert len({tiling.depth for tiling in tilings.values()}) == 1
    for rows, tiling in tilings.items():
        assert stage_bytes(tiling, rows, 1) <= SHARED_BYTES
        assert tiling.is_even(k)
        assert tiling.block_k % group == 0
        assert tiling.splits(k) <= max_splits(tiles, k)


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
def test_tilings_are_those_that_measured_best(
    tiles: int, k: int, group: int, rows: int, expected: tuple[int, int, int]
) -> None:
    tiling = pick_fp8_tiling(64, tiles, k, rows, group) if group else pick_tiling(64, tiles, k, rows)
    assert (tiling.block_k, tiling.depth, tiling.num_stages) == expected
