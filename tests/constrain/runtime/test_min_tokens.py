"""Answers of a least length: no token ends them before."""

from __future__ import annotations

import numpy as np
import pytest

from quicksilver.constrain.runtime.forced_prefix import ForcedPrefixes
from quicksilver.constrain.runtime.min_tokens import MinTokens
from quicksilver.core import ConstraintSpec, FinishReason, Request
from quicksilver.engine.config import EngineConfig
from quicksilver.errors import RowFailed
from tests.support.tiny import TINY, answers, decode_params, finish_all, tiny_engine

PROMPT = tuple(range(5, 25))
DECODERS = ["ar", "verify", "confidence", "edit"]


def legal(constraint: MinTokens, ahead: list[int], token_id: int) -> list[bool]:
    rows = np.zeros((len(ahead) + 1, 2), dtype=np.int32)
    count = constraint.write_masks(ahead, rows.data)
    return [bool(row[token_id // 32] >> (token_id % 32) & 1) for row in rows[:count]]


def test_end_tokens_are_masked_until_the_length_is_reached() -> None:
    constraint = MinTokens(2, (3, 40), 50)
    assert legal(constraint, [1, 1, 1], 3) == legal(constraint, [1, 1, 1], 40) == [False, False, True, True]
    assert legal(constraint, [1, 1, 1], 4) == [True] * 4
    assert legal(constraint, [1, 3, 1], 4) == [True, True]


def test_only_early_ends_are_illegal() -> None:
    constraint = MinTokens(2, (3,), 50)
    assert [constraint.legal_prefix(tokens) for tokens in ([1, 1, 3], [1, 3], [3], [])] == [3, 1, 0, 0]
    with pytest.raises(RowFailed, match="ends the answer"):
        constraint.advance([1, 3])
    constraint.advance([1])
    assert (constraint.can_stop(), constraint.is_over(), constraint.must_stop()) == (False, False, False)
    constraint.advance([1, 3])
    assert (constraint.can_stop(), constraint.is_over(), constraint.closing(1)) == (True, True, None)


@pytest.mark.parametrize("name", DECODERS)
def test_no_decoder_ends_an_answer_early(name: str) -> None:
    """Half of the vocabulary ends the answer, so without the constraint it is over at once."""
    stop_ids = tuple(range(0, TINY.vocab_size, 2))
    engine = tiny_engine(EngineConfig(num_pages=64, max_rows=96))
    engine.constraints = ForcedPrefixes([b""] * TINY.vocab_size, TINY.vocab_size).constraint
    params = decode_params(name, canvas_len=8, threshold=0.3, max_new_tokens=40, stop_ids=stop_ids)
    engine.add(Request("free", PROMPT, params))
    spec = ConstraintSpec(min_tokens=20, end_ids=stop_ids)
    engine.add(Request("bound", PROMPT, params, constraint=spec))
    deltas = finish_all(engine)
    tokens = answers(deltas)
    assert len(tokens["free"]) < 20 <= len(tokens["bound"]) < 40
    assert deltas["bound"][-1].finish is FinishReason.STOP
