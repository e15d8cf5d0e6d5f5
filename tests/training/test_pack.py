from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from quicksilver.errors import InvalidRequest
from quicksilver.training.batches import RowStore
from quicksilver.training.pack import Document, PackedRows, documents_of, join_rows, pack, side_by_side


def document(*ids: int) -> Document:
    is_answer = np.arange(len(ids)) > 0
    return Document(np.array(ids), is_answer, np.zeros_like(is_answer))


def packed() -> PackedRows:
    return pack([document(1, 2, 3), document(4, 5, 6, 7, 8), document(9, 10)], 8, pad_id=0, vocab_size=20)


def test_every_document_is_whole_in_one_row() -> None:
    rows = packed()
    assert rows.token_ids.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 0, 0, 0, 0, 0, 0]]
    assert rows.token_ids.dtype == np.uint16


def test_starts_mark_documents_and_padding_and_only_answers_count() -> None:
    rows = packed()
    assert np.argwhere(rows.is_start).tolist() == [[0, 0], [0, 3], [1, 0], [1, 2]]
    assert rows.is_answer[1].tolist() == [False, True] + [False] * 6


def test_too_long_a_document_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="9 tokens"):
        pack([document(*range(1, 10))], 8, pad_id=0, vocab_size=20)


@pytest.mark.parametrize("name", ["rows.safetensors", "rows.safetensors.xz"])
def test_rows_survive_a_file(tmp_path: Path, name: str) -> None:
    rows = packed()
    rows.save(tmp_path / name)
    again = PackedRows.load(tmp_path / name)
    for field in ("token_ids", "is_start", "is_answer", "is_text"):
        assert np.array_equal(getattr(rows, field), getattr(again, field))


def test_joined_rows_keep_their_order() -> None:
    rows = packed()
    assert np.array_equal(join_rows([rows, rows]).token_ids[2:], rows.token_ids)


def test_documents_come_back_out_of_packed_rows() -> None:
    assert [d.token_ids.tolist() for d in documents_of(packed())] == [[1, 2, 3], [4, 5, 6, 7, 8], [9, 10]]
    assert [d.prompt() for d in documents_of(packed())] == [[1], [4], [9]]


def test_short_rows_laid_side_by_side_stay_apart() -> None:
    wide = side_by_side(packed(), 16)
    assert wide.token_ids.shape == (1, 16)
    assert np.flatnonzero(wide.is_start[0]).tolist() == [0, 3, 8, 10]
    with pytest.raises(InvalidRequest, match="rows of 8"):
        side_by_side(packed(), 12)


def test_positions_restart_with_each_document() -> None:
    batch = RowStore(packed(), 2, seed=0, device=torch.device("cpu")).batch(0)
    row = int((batch.token_ids[:, 0] == 1).nonzero())
    assert batch.positions[row].tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert batch.doc_id[row].tolist() == [1, 1, 1, 2, 2, 2, 2, 2]


def test_batches_depend_on_their_number_alone() -> None:
    rows = join_rows([packed()] * 8)
    forward = [RowStore(rows, 4, 7, torch.device("cpu")).batch(n).token_ids for n in range(6)]
    backward = RowStore(rows, 4, 7, torch.device("cpu"))
    for number in reversed(range(6)):
        assert torch.equal(backward.batch(number).token_ids, forward[number])
