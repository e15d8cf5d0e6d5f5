"""`Lookahead`: answers depend on the text only, whatever was asked before."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quicksilver.constrain.runtime.matcher import GrammarConstraint, Grammars
from tests.constrain.conftest import SMOLLM2_WIDTH
from tests.constrain.runtime.test_matcher import CLOSED, PERSON, constrain, ids, pattern, spaced

TEXT = '{"name": "Ada \\"L\\" Moss", "size": 1815, "tags": ["a b", "c"], "ok": true}'
WRITER = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "size": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "size", "tags", "ok"],
    "additionalProperties": False,
}
Rows = NDArray[np.int32]


def rows_of(constraint: GrammarConstraint, ahead: list[int], num_words: int) -> Rows:
    rows: Rows = np.zeros((len(ahead) + 1, num_words), dtype=np.int32)
    return rows[: constraint.write_masks(ahead, rows.data)]


def ask(constraint: GrammarConstraint, rng: random.Random, rest: list[int], num_words: int) -> None:
    """A question about the right tokens, or about some of them and a wrong one."""
    ahead = rest[: rng.randrange(8)]
    if rng.random() < 0.5:
        ahead = [*ahead, rng.randrange(3, 250), *rest[:2]]
    kind = rng.randrange(4)
    if kind == 0:
        constraint.forced(ahead)
    elif kind == 1:
        constraint.legal_prefix(ahead)
    elif kind == 2:
        constraint.write_masks(ahead, np.zeros((len(ahead) + 1, num_words), dtype=np.int32).data)
    else:
        constraint.can_stop()


def assert_same_answers(one: GrammarConstraint, other: GrammarConstraint, rest: list[int], num_words: int) -> None:
    np.testing.assert_array_equal(rows_of(one, rest[:6], num_words), rows_of(other, rest[:6], num_words))
    assert one.legal_prefix(rest[:9]) == other.legal_prefix(rest[:9])
    assert one.legal_prefix([*rest[:3], 5]) == other.legal_prefix([*rest[:3], 5])
    assert one.forced(rest[:2]) == other.forced(rest[:2])
    assert (one.forced(), one.can_stop(), one.must_stop()) == (other.forced(), other.can_stop(), other.must_stop())


@pytest.mark.parametrize("seed", range(8))
def test_questions_change_no_answer(smollm2: Grammars, seed: int) -> None:
    rng, num_words = random.Random(seed), SMOLLM2_WIDTH // 32
    asked, quiet = spaced(smollm2, WRITER), spaced(smollm2, WRITER)
    text, at = TEXT.encode(), 0
    while at < len(text):
        taken = asked.forced()
        rest = smollm2._tokens.encode(text[at + len(smollm2._tokens.tokenizer.decode_bytes(taken)) :])
        taken = taken or rest[: rng.randrange(1, 4)]
        for _ in range(rng.randrange(4)):
            ask(asked, rng, [*taken, *rest], num_words)
        taken = taken[: asked.legal_prefix(taken)]
        asked.advance(taken)
        quiet.advance(taken)
        at += len(smollm2._tokens.tokenizer.decode_bytes(taken))
        ahead = smollm2._tokens.encode(text[at:])
        fresh = quiet.copy()
        assert_same_answers(asked, fresh, ahead, num_words)
    assert asked.must_stop()


def test_masks_are_those_of_an_automaton_that_has_consumed_the_text(smollm2: Grammars) -> None:
    """Also where the tokens after a forced run were computed to find its end."""
    tokens, num_words = smollm2._tokens, SMOLLM2_WIDTH // 32
    constraint, plain = spaced(smollm2, WRITER), spaced(smollm2, WRITER)._matcher
    text, at, num_free = TEXT.encode(), 0, 0
    while not constraint.must_stop():
        taken = constraint.forced() or tokens.encode(text[at:])[:1]
        (row,) = rows_of(constraint, [], num_words)
        allowed = tokens.allowed_bits(plain)
        if constraint.forced():
            assert not (row & ~allowed).any()
        else:
            np.testing.assert_array_equal(row, allowed)
            num_free += 1
        constraint.advance(taken)
        assert plain.consume_tokens(taken)
        at += len(tokens.tokenizer.decode_bytes(taken))
    assert num_free > 10


def test_a_run_that_another_token_replaced_is_forgotten(smollm2: Grammars) -> None:
    """Legal tokens may spell forced text differently; what was computed for the end of the run does not apply then."""
    encode = smollm2._tokens.encode
    constraint, other = spaced(smollm2, CLOSED), spaced(smollm2, CLOSED)
    assert constraint.forced()
    spelled = [token for byte in b'{"na' for token in encode(bytes((byte,)))]
    constraint.advance(spelled)
    other.advance(spelled)
    assert constraint.forced() == other.forced()
    constraint.advance(constraint.forced())
    other.advance(other.forced())
    assert_same_answers(constraint, other, encode(b'Ada", "size": 3}'), SMOLLM2_WIDTH // 32)


def test_a_copy_keeps_the_tokens_ahead(grammars: Grammars) -> None:
    constraint = constrain(grammars, PERSON)
    constraint.legal_prefix(ids('{"name":"Bo"'))
    twin = constraint.copy()
    constraint.advance(ids('{"name":"x'))
    assert twin.legal_prefix(ids('{"name":"Bo","ok":true}')) == 23
    twin.advance(ids('{"name":"Bo"'))
    assert bytes(twin.forced()) == b',"ok":'
    assert constraint.legal_prefix(ids('y"')) == 2


def test_the_text_may_continue_differently_after_a_question(grammars: Grammars) -> None:
    constraint: Any = pattern(grammars, "a(bcd|bxy|z)")
    assert constraint.legal_prefix(ids("abcd")) == 4
    assert constraint.legal_prefix(ids("abxq")) == 3
    constraint.advance(ids("ab"))
    assert constraint.legal_prefix(ids("cd")) == 2
    constraint.advance(ids("xy"))
    assert constraint.must_stop()
