"""Row adapters: which ones are refused, and their embeddings."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quicksilver.errors import CheckpointRefused
from quicksilver.model.lowrank import LowRank
from quicksilver.model.row_adapters import MAX_RANK, check_row_adapter, convert
from tests.support.canvas_adapters import new_canvas
from tests.support.row_adapters import random_adapter
from tests.support.tiny import TINY


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_layers": 3}, "2 layers, the model 3"),
        ({"dim": 40}, "the model's is"),
        ({"ffn_dim": 96}, "the model's is"),
        ({"num_kv_heads": 4}, "the model's is"),
    ],
)
def test_adapters_of_another_network_are_refused(change: dict[str, int], reason: str) -> None:
    with pytest.raises(CheckpointRefused, match=reason):
        check_row_adapter(replace(TINY, **change), random_adapter(1))  # type: ignore[arg-type]


def test_a_rank_above_the_limit_is_refused() -> None:
    check_row_adapter(TINY, random_adapter(1, rank=MAX_RANK))
    with pytest.raises(CheckpointRefused, match=f"rank {MAX_RANK + 1}"):
        check_row_adapter(TINY, random_adapter(1, rank=MAX_RANK + 1))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    adapter = random_adapter(1, embedding_ids=(4, 5))
    assert adapter.embedding_rows is not None
    adapter.embedding_rows[1, 3] = value
    with pytest.raises(CheckpointRefused, match="not finite"):
        check_row_adapter(TINY, adapter)


def test_a_canvas_adapter_is_refused() -> None:
    with pytest.raises(CheckpointRefused, match="canvas adapter"):
        check_row_adapter(TINY, new_canvas(TINY, rank=4, max_canvas_len=8, seed=1))


def test_embeddings_are_replaced_in_the_rows_of_the_adapter_only() -> None:
    adapter = convert(TINY, random_adapter(1, embedding_ids=(7, 2)), lambda pair: pair, "cpu")
    assert adapter.embedding_rows is not None
    token_ids, rows = torch.tensor([2, 7, 3, 2, 7]), torch.tensor([1, 2, 3])
    x = torch.zeros(5, TINY.dim)
    adapter.replace_embeddings(x, token_ids, rows)
    assert torch.equal(x[1], adapter.embedding_rows[1]), "ids are sorted: 7 is the second"
    assert torch.equal(x[3], adapter.embedding_rows[0])
    assert not x[[0, 2, 4]].any()


def test_pairs_for_canvas_rows_are_checked_like_the_others() -> None:
    adapter = random_adapter(1)
    adapter.canvas = random_adapter(2, rank=MAX_RANK + 1)
    with pytest.raises(CheckpointRefused, match=f"rank {MAX_RANK + 1}"):
        check_row_adapter(TINY, adapter)
    adapter.canvas = random_adapter(2)
    check_row_adapter(TINY, adapter)
    with pytest.raises(CheckpointRefused, match="2 layers, the model 3"):
        check_row_adapter(replace(TINY, num_layers=3), adapter)
    next(adapter.canvas.low_rank())[2].A.data[0, 0] = float("nan")
    with pytest.raises(CheckpointRefused, match="not finite"):
        check_row_adapter(TINY, adapter)


def test_canvas_rows_pass_through_both_pairs() -> None:
    adapter = random_adapter(1, rank=4, embedding_ids=(7, 2))
    plain = convert(TINY, adapter, lambda pair: pair, "cpu")
    adapter.canvas = random_adapter(2, rank=3)
    converted = convert(TINY, adapter, lambda pair: pair, "cpu")
    assert plain.canvas is None
    assert converted.canvas is not None
    assert (converted.rank, converted.canvas.rank) == (4, 7)
    assert converted.num_bytes == plain.num_bytes + converted.canvas.num_bytes
    assert torch.equal(converted.canvas.embedding_rows, converted.embedding_rows)  # type: ignore[arg-type]
    for index, name, pair in adapter.low_rank():
        added = adapter.canvas.layers[index][name]  # type: ignore[index]
        both = converted.canvas.layers[index][name]
        assert isinstance(both, LowRank)
        assert isinstance(added, LowRank)
        torch.testing.assert_close(both.product(), pair.product() + added.product())
