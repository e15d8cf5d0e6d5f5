"""Pairs of a row and an expert, cut into tiles of one expert."""

from __future__ import annotations

import pytest
import torch

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from quicksilver.backends.cuda.kernels.expert_tiles import ExpertTiles, group_pairs
from tests.support.kernel_checks import here

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")


def found_pairs(chosen: list[list[int]], num_experts: int, height: int) -> dict[int, list[int]]:
    """The pairs of each expert, from the tiles of two calls with the same buffers."""
    ids = torch.tensor(chosen, device=here().device)
    tiles = ExpertTiles.allocate(len(ids), num_experts, ids.numel(), height, ids.device)
    group_pairs(torch.zeros_like(ids), num_experts, tiles)
    group_pairs(ids, num_experts, tiles)
    assert not bool(tiles.counts.any())
    assert not bool(tiles.arrived.any())
    pairs: dict[int, list[int]] = {}
    for expert, first, end, _ in tiles.records[: int(tiles.num_tiles)].tolist():
        assert 0 < end - first <= height
        pairs.setdefault(expert, []).extend(tiles.pairs[expert, first:end].tolist())
    return {expert: sorted(found) for expert, found in pairs.items()}


def test_tiles_hold_the_pairs_of_one_expert_each() -> None:
    assert found_pairs([[2, 0], [2, 1], [2, 0]], 4, 16) == {0: [1, 5], 1: [3], 2: [0, 2, 4]}


def test_many_pairs_of_an_expert_have_several_tiles() -> None:
    chosen = [[row % 3 + 1, 0] for row in range(700)]
    wanted = {0: [2 * row + 1 for row in range(700)]}
    wanted |= {e + 1: [2 * row for row in range(700) if row % 3 == e] for e in range(3)}
    assert found_pairs(chosen, 5, 64) == wanted


def test_ids_that_are_no_expert_are_left_out() -> None:
    assert found_pairs([[-1, 0], [-1, -1], [7, 1]], 3, 16) == {0: [1], 1: [5]}


def test_a_list_does_not_overflow() -> None:
    """Of NaN scores a row may choose an expert more than once."""
    ids = torch.zeros(4, 3, dtype=torch.int64, device=here().device)
    tiles = group_pairs(ids, 2, ExpertTiles.allocate(4, 2, 12, 16, ids.device))
    assert tiles.records[0].tolist() == [0, 0, 4, 0]
    assert int(tiles.num_tiles) == 1
