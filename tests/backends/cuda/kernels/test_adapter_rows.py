"""Row adapters in the network, on all paths, and the tiles of their rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from quicksilver.backends.cuda.adapter_buffers import send_tiles
from quicksilver.backends.cuda.adapter_table import AdapterTable
from quicksilver.backends.cuda.kernels.adapter_rows import (
    PROMPT_TILE,
    TILE,
    UNUSED,
    AdapterScratch,
    AdapterTiles,
    cut_adapter_tiles,
    max_tiles,
)
from quicksilver.backends.cuda.kernels.network import MatmulMode
from quicksilver.model.config import ModelConfig
from quicksilver.model.experts import MoeConfig
from tests.support.adapter_checks import check_adapter_network, check_quantised_base
from tests.support.fp8_checks import dequantised, round_groups
from tests.support.graph_checks import TINIEST_PLAIN
from tests.support.kernel_checks import expect_close, here
from tests.support.row_adapters import random_adapter

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
# A linear of 1,088 inputs is split into three ranges.
DEEP = ModelConfig("llama", 2, 32, 1088, 2, 1, 32, 60, 256, tied_head=True)


@pytest.mark.parametrize("tile", [TILE, PROMPT_TILE])
def test_tiles_hold_every_row_once_with_rows_of_its_own_adapter(tile: int) -> None:
    rng = np.random.default_rng(0)
    for num_rows in (1, 16, 64, 500):
        for num_slots in (1, 3, 40):
            slots = rng.integers(-1, num_slots, num_rows).astype(np.int32)
            tiles = np.zeros((max_tiles(num_rows, num_slots, tile), 1 + tile), dtype=np.int32)
            cut_adapter_tiles(slots, tiles)
            used = tiles[tiles[:, 0] != UNUSED]
            rows = used[:, 1:][used[:, 1:] >= 0]
            assert sorted(rows.tolist()) == list(range(num_rows))
            for line in used:
                assert set(slots[line[1:][line[1:] >= 0]]) == {line[0]}


@pytest.mark.parametrize(
    ("mode", "count", "max_rows"),
    [(MatmulMode.FASTEST, 5, 64), (MatmulMode.BATCH_INVARIANT, 22, 128), (MatmulMode.FASTEST, 22, 16)],
    ids=["six launches", "batch-invariant chunks", "prompts without a graph"],
)
def test_a_network_with_adapters_and_canvas_rows_equals_the_eager_network(
    mode: MatmulMode, count: int, max_rows: int
) -> None:
    check_adapter_network(TINIEST_PLAIN, count, 3, True, mode, max_rows)


def test_adapters_beside_routed_experts_change_attention_and_dense_layers() -> None:
    config = replace(TINIEST_PLAIN, num_layers=2, moe=MoeConfig(5, 2, 24, num_dense=1))
    check_adapter_network(config, 5, 3, False, MatmulMode.FASTEST, 64)


@pytest.mark.parametrize("scheme", ["fp8", "int4"])
def test_adapters_beside_quantised_weights(scheme: str) -> None:
    check_quantised_base(scheme, TINIEST_PLAIN, 5e-2 if here().device == "cuda" else 5e-3)


def rows_of(table: AdapterTable, slots: list[int]) -> AdapterTiles:
    scratch = AdapterScratch.allocate(table.pools, 64, 64, 64)
    tiles = torch.zeros(max_tiles(len(slots), table.num_slots, TILE), 1 + TILE, dtype=torch.int32, device=here().device)
    rows = AdapterTiles(table.pools, scratch, tiles, len(slots), is_split=True)
    send_tiles(rows, np.array(slots, dtype=np.int32))
    return rows


def test_terms_are_those_of_each_rows_adapter_whatever_the_other_rows_are() -> None:
    place = here()
    table = AdapterTable(DEEP, 5, torch.device(place.device), place.dtype)
    adapters = [random_adapter(i, rank, DEEP, std=0.1) for i, rank in enumerate((4, 20, 16))]
    placed = [table.convert(one) for one in adapters]
    for one in placed:
        table.place(one)
    slots = [table.slot_of(one) for one in placed]
    x = place.normal(19, DEEP.ffn_dim)
    choice = [i % 4 - 1 for i in range(19)]
    found = rows_of(table, [-1 if c < 0 else slots[c] for c in choice]).term(1, "dn", x).clone()
    for row, c in enumerate(choice):
        wanted = torch.zeros_like(found[row]) if c < 0 else placed[c].layers[1]["dn"].delta(x[row : row + 1])[0].float()
        expect_close(found[row], wanted, place.tolerance)
        alone = rows_of(table, [-1 if c < 0 else slots[c]]).term(1, "dn", x[row : row + 1])
        assert torch.equal(alone[0], found[row])


def test_terms_of_fp8_inputs_use_their_scales() -> None:
    place = here()
    table = AdapterTable(DEEP, 2, torch.device(place.device), place.dtype)
    placed = table.convert(random_adapter(1, 20, DEEP, std=0.1))
    table.place(placed)
    x, steps = round_groups(torch.randn(5, DEEP.ffn_dim, device=place.device), 64)
    found = rows_of(table, [table.slot_of(placed)] * 5).term(0, "dn", x, steps)
    wanted = placed.layers[0]["dn"].delta(dequantised(x, steps).to(place.dtype)).float()
    expect_close(found, wanted, place.tolerance)
