"""The toy task: a tiny model and a corpus that it can memorise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from quicksilver.training.pack import PackedRows
from quicksilver.training.prepared_data import TRAIN, Facts
from quicksilver.training.toy_task import (
    END,
    FIRST_NAME,
    NUM_VERSES,
    OPEN,
    TINY,
    VERSE_LEN,
    tiny_model,
    verse_prompts,
    verses,
    write_verses,
)


def test_documents_cycle_over_the_verses() -> None:
    documents = verses(2 * NUM_VERSES)
    for i, document in enumerate(documents):
        assert document.token_ids[:2].tolist() == [OPEN, FIRST_NAME + i % NUM_VERSES]
        assert len(document.token_ids) == VERSE_LEN + 3
        assert document.token_ids[-1] == END
        assert document.is_answer.tolist() == [False, False] + [True] * (VERSE_LEN + 1)
        assert document.token_ids.max() < TINY.vocab_size
    assert np.array_equal(documents[0].token_ids, documents[NUM_VERSES].token_ids)
    assert not np.array_equal(documents[0].token_ids, documents[1].token_ids)


def test_models_of_one_seed_are_equal() -> None:
    first, second, other = tiny_model(), tiny_model(), tiny_model(seed=6)
    assert torch.equal(first.tokens.weight, second.tokens.weight)
    assert not torch.equal(first.tokens.weight, other.tokens.weight)


def test_the_files_are_those_of_a_prepare_stage(tmp_path: Path) -> None:
    facts = write_verses(tmp_path / "data", row_len=64)
    assert Facts.load(tmp_path / "data") == facts
    rows = PackedRows.load(tmp_path / "data" / TRAIN)
    assert (rows.num_rows, rows.row_len) == (facts.rows, 64)
    assert int(rows.is_answer.sum()) == facts.answer_tokens
    assert verse_prompts().num_prompts == NUM_VERSES
