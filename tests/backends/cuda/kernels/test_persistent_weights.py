"""Stacked weights of the persistent kernel, and the models that use it."""

from __future__ import annotations

import pytest
import torch

from quicksilver.backends.cuda.kernels.persistent_weights import fits_persistent, rows_per_tile, stack_weights
from quicksilver.backends.cuda.kernels.weights import collect
from tests.support import graph_checks as graphs


def test_the_second_copy_has_the_adapter_merged_in() -> None:
    weights = collect(graphs.model_of(graphs.TINIEST_PERSISTENT))
    stacked, layer = stack_weights(graphs.TINIEST_PERSISTENT, weights), weights.layers[0]
    lora = layer.canvas["dn"]
    assert stacked.down.shape[0] == 2
    assert torch.equal(stacked.down[0, 0], layer.down.w)
    torch.testing.assert_close(stacked.down[1, 0], layer.down.w + lora.b @ lora.a)


def test_without_an_adapter_there_is_one_copy() -> None:
    weights = collect(graphs.model_of(graphs.TINIEST_PERSISTENT, has_adapter=False))
    assert stack_weights(graphs.TINIEST_PERSISTENT, weights).qkv.shape[0] == 1


def test_only_small_unquantised_models_without_head_norms_fit() -> None:
    config, weights = graphs.TINIEST_PERSISTENT, collect(graphs.model_of(graphs.TINIEST_PERSISTENT))
    assert fits_persistent(config, weights)
    assert not fits_persistent(config, weights, limit=weights.num_bytes - 1)
    assert not fits_persistent(config, collect(graphs.model_of(config), "fp8"))
    assert not fits_persistent(graphs.TINIEST, collect(graphs.model_of(graphs.TINIEST)))


@pytest.mark.parametrize(("rows", "tile"), [(16, 16), (32, 32), (48, 16), (64, 32)])
def test_tiles_of_32_rows_are_used_if_they_divide_the_batch(rows: int, tile: int) -> None:
    assert rows_per_tile(rows) == tile
