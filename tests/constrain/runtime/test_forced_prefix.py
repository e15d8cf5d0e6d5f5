"""Answers that must begin with given text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quicksilver.constrain.runtime.forced_prefix import ForcedPrefix, ForcedPrefixes
from quicksilver.constrain.runtime.matcher import Grammars
from quicksilver.core import ConstraintSpec, TokenConstraint
from quicksilver.errors import InvalidGrammar, RowFailed
from quicksilver.text.tokenizer import Tokenizer

TEXTS = [b"", b"c", b"co", b"comp", b"compute", b"o", b"m", b"p", b"x", b" comp", b"cop", b"computer", b""]
LEADS = ForcedPrefixes(TEXTS, vocab_size=40)


def allowed(lead: TokenConstraint, ahead: list[int], num_words: int) -> list[set[int]]:
    rows = np.zeros((len(ahead) + 1, num_words), dtype=np.int32)
    count = lead.write_masks(ahead, rows.data)
    flags = np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little")
    return [set(np.flatnonzero(row).tolist()) for row in flags[:count]]


def test_tokens_that_spell_a_prefix_of_the_text_are_allowed() -> None:
    lead = LEADS.constraint(ConstraintSpec(lead="comp"))
    assert allowed(lead, [], 2) == [{1, 2, 3, 4, 11}]
    assert allowed(lead, [2, 6, 7], 2) == [{1, 2, 3, 4, 11}, {6}, {7}, set(range(64))]
    assert allowed(lead, [8, 1], 2) == [{1, 2, 3, 4, 11}]


def test_the_constraint_ends_once_the_text_is_complete() -> None:
    lead = LEADS.constraint(ConstraintSpec(lead="comp"))
    assert (lead.legal_prefix([2, 6, 7, 8, 0]), lead.legal_prefix([4, 0, 8]), lead.legal_prefix([0])) == (5, 3, 0)
    assert (lead.legal_prefix([2, 7]), lead.legal_prefix([])) == (1, 0)
    lead.advance([2])
    assert (lead.can_stop(), lead.is_over(), lead.must_stop(), lead.closing(1)) == (False, False, False, None)
    lead.advance([6, 7])
    assert (lead.can_stop(), lead.is_over(), lead.must_stop()) == (True, True, False)


def test_token_that_does_not_spell_it_is_refused() -> None:
    with pytest.raises(RowFailed, match="required beginning"):
        LEADS.constraint(ConstraintSpec(lead="comp")).advance([8])


def test_canvas_is_kept_up_to_the_first_wrong_token() -> None:
    lead = LEADS.constraint(ConstraintSpec(lead="comp"))
    assert lead.sweep([2, 8, 7, None]) == [2, None, None, None]
    assert lead.sweep([3, 8, None, 7]) == [3, 8, None, 7]


def test_ids_beyond_the_vocabulary_spell_nothing() -> None:
    narrow = ForcedPrefixes(TEXTS, vocab_size=4).constraint(ConstraintSpec(lead="comp"))
    assert allowed(narrow, [], 1) == [{1, 2, 3}]
    assert narrow.legal_prefix([4]) == narrow.legal_prefix([39]) == 0


def test_engine_without_grammars_refuses_one() -> None:
    with pytest.raises(InvalidGrammar, match="without structured output"):
        LEADS.constraint(ConstraintSpec("a grammar"))


def test_grammars_create_forced_prefixes_over_the_same_tokens(grammars: Grammars, tokenizer: Tokenizer) -> None:
    spec = ConstraintSpec(lead=" th")
    first, second = grammars.constraint(spec), ForcedPrefixes.of(tokenizer, tokenizer.vocab_size).constraint(spec)
    assert isinstance(first, ForcedPrefix)
    num_words = -(-tokenizer.vocab_size // 32)
    (found,) = allowed(second, [], num_words)
    assert found == {
        i
        for i in range(tokenizer.vocab_size)
        if (text := tokenizer.token_bytes(i)) and (text.startswith(b" th") or b" th".startswith(text))
    }
    assert first.legal_prefix(tokenizer.encode(" the end")) == len(tokenizer.encode(" the end"))


@given(st.text(alphabet="acé ", min_size=1, max_size=6), st.text(alphabet="acé ", max_size=4))
def test_any_tokenisation_of_the_text_is_legal(lead: str, more: str) -> None:
    texts = [bytes([i]) for i in range(256)] + [b"a ", b" a", b"ca", "é".encode(), b"aca"]
    constraint = ForcedPrefixes(texts, 261).constraint(ConstraintSpec(lead=lead))
    ids = list((lead + more).encode())
    assert constraint.legal_prefix(ids) == len(ids)
    due, taken = constraint, list[int]()
    while not due.is_over():
        (options,) = allowed(due, [], 9)
        taken.append(max(options))
        due.advance([max(options)])
    assert b"".join(texts[i] for i in taken).startswith(lead.encode())
