"""Batches of packed rows: determined by seed and number."""

from __future__ import annotations

import pytest
import torch

from quicksilver.errors import InvalidRequest
from quicksilver.training.batches import RowStore
from quicksilver.training.pack import pack
from quicksilver.training.toy_task import PAD, verses


def store(seed: int = 0) -> RowStore:
    return RowStore(pack(verses(64), 64, PAD, 96), 4, seed, torch.device("cpu"))


def test_a_batch_depends_on_seed_and_number_only() -> None:
    late, again = store(), store()
    late.batch(3)
    assert torch.equal(late.batch(1).token_ids, again.batch(1).token_ids)
    assert not torch.equal(store(1).batch(0).token_ids, again.batch(0).token_ids)


def test_an_epoch_has_every_row_once_and_the_next_another_order() -> None:
    rows = store()
    per_epoch = rows.num_rows // 4
    first = torch.cat([rows.batch(number).token_ids for number in range(per_epoch)])
    second = torch.cat([rows.batch(per_epoch + number).token_ids for number in range(per_epoch)])
    assert not torch.equal(first, second)
    assert sorted(map(tuple, first.tolist())) == sorted(map(tuple, second.tolist())) or rows.num_rows % 4


def test_positions_restart_with_each_document() -> None:
    batch = store().batch(0)
    is_start = batch.doc_id != batch.doc_id.roll(1, dims=1)
    is_start[:, 0] = True
    assert not batch.positions[is_start].any()
    assert (batch.positions[~is_start] > 0).all()


def test_too_few_rows_for_a_batch_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="rows_per_batch"):
        RowStore(pack(verses(2), 64, PAD, 96), 64, 0, torch.device("cpu"))
