"""`GrammarConstraint`: masks, prefixes, stops, copies, failures."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.runtime.matcher import MAX_CACHED, GrammarConstraint, Grammars
from quicksilver.constrain.source import FormatKind, Layout, ResponseFormat
from quicksilver.constrain.validate import validate_output
from quicksilver.core import ConstraintSpec, TokenConstraint
from quicksilver.errors import InvalidGrammar, RowFailed
from tests.constrain.conftest import SMOLLM2_WIDTH, special
from tests.constrain.walks import schema_spec
from tests.support.small_tokenizer import VOCAB_SIZE

END = special("<|im_end|>")
OTHER_END = special("<|endoftext|>")
MASK = special("<|mask|>")
WORDS = -(-VOCAB_SIZE // 32)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "ok": {"enum": [True, False]}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}
CLOSED = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


def constrain(grammars: Grammars, schema: Any) -> GrammarConstraint:
    return grammars.constraint(schema_spec(schema))


def spaced(grammars: Grammars, schema: Any) -> GrammarConstraint:
    wanted = ResponseFormat(FormatKind.JSON_SCHEMA, schema, layout=Layout.SPACED)
    return grammars.constraint(compile_response_format(wanted))


def pattern(grammars: Grammars, expression: str) -> GrammarConstraint:
    return grammars.constraint(compile_response_format(ResponseFormat(FormatKind.REGEX, expression)))


def ids(text: str) -> list[int]:
    return list(text.encode())


def masks(constraint: TokenConstraint, ahead: list[int], num_words: int = WORDS) -> list[set[int]]:
    rows: NDArray[np.int32] = np.full((len(ahead) + 1, num_words), -1, dtype=np.int32)
    num_rows = constraint.write_masks(ahead, rows.data)
    flags = np.unpackbits(rows[:num_rows].view(np.uint8), axis=1, bitorder="little")
    return [set(np.flatnonzero(row).tolist()) for row in flags]


def test_it_is_a_token_constraint(grammars: Grammars) -> None:
    constraint: TokenConstraint = constrain(grammars, PERSON)
    assert constraint.can_stop() is False


def test_text_that_the_grammar_determines_is_forced(grammars: Grammars) -> None:
    constraint = constrain(grammars, PERSON)
    assert bytes(constraint.forced()) == b'{"name":"'
    constraint.advance(ids('{"name":"Bo"'))
    assert bytes(constraint.forced()) == b',"ok":'


def test_rows_follow_the_tokens_ahead(grammars: Grammars) -> None:
    rows = masks(pattern(grammars, "ab|ac"), ids("ab"))
    assert rows == [{ord("a")}, {ord("b"), ord("c")}, {END, OTHER_END}]


def test_rows_end_at_the_first_illegal_token(grammars: Grammars) -> None:
    assert len(masks(pattern(grammars, "abc"), ids("axc"))) == 2
    assert len(masks(pattern(grammars, "abc"), ids("x"))) == 1


def test_a_stop_token_ahead_ends_the_rows(grammars: Grammars) -> None:
    assert len(masks(pattern(grammars, "a*"), [ord("a"), END, ord("a")])) == 2


def test_rows_are_as_wide_as_the_logits_and_empty_beyond_the_vocabulary(grammars: Grammars) -> None:
    (row,) = masks(pattern(grammars, "(?s:.*)"), [])
    assert max(row) < 256 + 13
    assert MASK not in row
    assert {END, OTHER_END} <= row


def test_logits_narrower_than_the_vocabulary_never_get_an_id_beyond_them(grammars: Grammars, tokenizer: Any) -> None:
    narrow = Grammars(tokenizer.to_json(), tokenizer.eos_ids, 100)
    constraint = pattern(narrow, "[a-z]+")
    (row,) = masks(constraint, [], 4)
    assert row == {ord("a"), ord("b"), ord("c")}
    assert constraint.legal_prefix([ord("z")]) == 0


def test_lookahead_changes_nothing(grammars: Grammars) -> None:
    constraint = constrain(grammars, PERSON)
    before = masks(constraint, [])
    masks(constraint, ids('{"name":"x"'))
    constraint.legal_prefix(ids('{"name":"x","ok":true}'))
    constraint.closing(50)
    constraint.forced()
    assert masks(constraint, []) == before


@pytest.mark.parametrize(
    ("tokens", "legal"),
    [
        (ids('{"name":"x","ok":true}'), 22),
        ([*ids('{"name":"x","ok":true}'), END], 23),
        ([*ids('{"name":"x","ok":true}'), OTHER_END, 5], 23),
        ([*ids('{"name":"x"'), END], 11),
        (ids('{"nam_'), 5),
        ([], 0),
        ([MASK], 0),
        ([VOCAB_SIZE + 5], 0),
        ([-1], 0),
    ],
)
def test_legal_prefixes(grammars: Grammars, tokens: list[int], legal: int) -> None:
    assert constrain(grammars, PERSON).legal_prefix(tokens) == legal


def test_stops(grammars: Grammars) -> None:
    constraint = pattern(grammars, "ab?")
    constraint.advance(ids("a"))
    assert (constraint.can_stop(), constraint.must_stop()) == (True, False)
    constraint.advance(ids("b"))
    assert (constraint.can_stop(), constraint.must_stop()) == (True, True)
    assert constraint.forced() == []


def test_nothing_follows_a_stop_token(grammars: Grammars) -> None:
    constraint = pattern(grammars, "a*")
    constraint.advance([ord("a"), END])
    assert constraint.must_stop()
    assert constraint.legal_prefix(ids("a")) == 0
    assert masks(constraint, []) == [{END, OTHER_END}]
    assert constraint.closing(1) is None
    with pytest.raises(RowFailed):
        constraint.advance(ids("a"))


def test_an_illegal_token_fails_the_request_for_good(grammars: Grammars) -> None:
    constraint = pattern(grammars, "abc")
    with pytest.raises(RowFailed, match="does not fit"):
        constraint.advance(ids("x"))
    with pytest.raises(RowFailed):
        constraint.must_stop()
    with pytest.raises(RowFailed):
        masks(constraint, [])


def test_copies_are_independent(grammars: Grammars) -> None:
    constraint = pattern(grammars, "ab|ac")
    constraint.advance(ids("a"))
    twin = constraint.copy()
    twin.advance(ids("b"))
    assert twin.must_stop()
    assert constraint.legal_prefix(ids("c")) == 1


def test_a_grammar_that_cannot_be_built_is_refused(grammars: Grammars) -> None:
    with pytest.raises(InvalidGrammar, match="cannot be enforced"):
        grammars.constraint(ConstraintSpec('{"grammars":[{"lark_grammar":"start: nothing"}]}'))


def test_only_one_tokenisation_of_forced_text_is_allowed_along_a_draft(smollm2: Grammars) -> None:
    constraint = spaced(smollm2, CLOSED)
    forced = constraint.forced()
    encode = smollm2._tokens.tokenizer.tokenize_str
    assert smollm2._tokens.tokenizer.decode_str(forced) == '{"name": "'
    constraint.advance(forced)
    draft = encode('Ada", "size": 3}')
    at = draft.index(encode("size")[0])
    assert len(masks(constraint, draft, SMOLLM2_WIDTH // 32)) == len(draft) + 1
    other = [*draft[:at], *encode("s"), *encode("ize")]
    assert len(masks(constraint, other, SMOLLM2_WIDTH // 32)) == at + 1


def test_a_forced_run_keeps_its_tokenisation(smollm2: Grammars) -> None:
    whole = spaced(smollm2, CLOSED)
    run = whole.forced()
    for cut in range(1, len(run)):
        part = spaced(smollm2, CLOSED)
        part.advance(run[:cut])
        assert part.forced() == run[cut:]


@pytest.mark.parametrize(
    ("schema", "forced"),
    [
        ({"type": "string"}, '{"a": "'),
        ({"type": "integer"}, '{"a": '),
        ({"enum": ["celsius", "fahrenheit"]}, '{"a": "'),
        ({"type": "boolean"}, '{"a":'),
        ({"type": ["integer", "array"]}, '{"a":'),
        ({"enum": [True]}, '{"a": true}'),
    ],
)
def test_text_is_forced_up_to_a_token_boundary_of_running_text(smollm2: Grammars, schema: Any, forced: str) -> None:
    closed = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    assert smollm2._tokens.tokenizer.decode_str(spaced(smollm2, closed).forced()) == forced


def test_the_cache_keeps_recent_grammars(tokenizer: Any) -> None:
    fresh = Grammars(tokenizer.to_json(), tokenizer.eos_ids, VOCAB_SIZE)
    for i in range(MAX_CACHED + 5):
        pattern(fresh, f"a{i}b")
    assert len(fresh._automata) == MAX_CACHED
    assert pattern(fresh, "a0b").legal_prefix(ids("a0b")) == 3


@pytest.mark.parametrize(
    ("written", "refused"),
    [("1" * 40, "1"), ("-0." + "3" * 40, "3"), ("1e12", "3"), ("2E+30", "0"), ("5e-99", "9")],
)
def test_a_number_cannot_go_on_forever(grammars: Grammars, written: str, refused: str) -> None:
    constraint = constrain(grammars, {"type": "number"})
    assert constraint.legal_prefix(ids(written)) == len(written)
    assert constraint.legal_prefix(ids(written + refused)) == len(written)
    rows = masks(constraint, ids(written))
    assert not rows[-1] & set(b"0123456789")
    assert END in rows[-1]


def test_digits_in_a_string_are_free(grammars: Grammars) -> None:
    text = '"' + "7" * 60 + '"'
    assert constrain(grammars, {"type": "string"}).legal_prefix(ids(text)) == len(text)


def test_a_number_that_must_be_long_may_be(grammars: Grammars) -> None:
    constraint = pattern(grammars, "[0-9]{60}")
    for _ in range(60):
        (row,) = masks(constraint, [])
        assert constraint.legal_prefix([min(row)]) == 1
        constraint.advance([min(row)])
    assert constraint.must_stop()


def test_forced_bytes_have_one_tokenisation(smollm2: Grammars) -> None:
    tokenizer = smollm2._tokens.tokenizer
    constraint = constrain(smollm2, PERSON)
    forced = constraint.forced()
    assert tokenizer.decode_str(forced) == '{"name":"'
    constraint.advance(forced[:-1])
    (row,) = masks(constraint, [], SMOLLM2_WIDTH // 32)
    assert row == {forced[-1]}
    assert tokenizer.tokenize_str('{"name":"Ada')[: len(forced)] == forced


def test_random_tokens_of_a_real_vocabulary_always_make_valid_json(smollm2: Grammars) -> None:
    rng = random.Random(5)
    for seed in range(6):
        constraint = constrain(smollm2, PERSON if seed % 2 else {"type": "object", "maxProperties": 2})
        tokens: list[int] = []
        while not constraint.must_stop() and len(tokens) < 120:
            path = constraint.closing(120 - len(tokens))
            if path is not None:
                constraint.advance(path)
                tokens += path
                break
            (row,) = masks(constraint, [], SMOLLM2_WIDTH // 32)
            allowed = sorted(row)
            pick = rng.choice(allowed)
            if constraint.legal_prefix([pick]) == 1:
                constraint.advance([pick])
                tokens += [pick]
        text = smollm2._tokens.tokenizer.decode_str([t for t in tokens if t not in (0, 2)])
        assert validate_output({"type": "object"}, text) is None
        assert isinstance(json.loads(text), dict)
