"""`uniqueItems` over strings at run time: repeated strings are refused, and a new one is always left."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from quicksilver.constrain.places import Places, mark
from quicksilver.constrain.runtime.matcher import GrammarConstraint, Grammars
from quicksilver.constrain.runtime.unique import Reader
from quicksilver.constrain.validate import validate_output
from tests.constrain.conftest import SMOLLM2_WIDTH
from tests.constrain.runtime.test_matcher import constrain, masks, spaced
from tests.constrain.walks import ALPHABET, accepts, admits, automaton, schema_spec

MARKED = {**mark(""), "type": "array", "items": {"type": "string"}}
FREE = {"type": "array", "items": {"type": "string"}, "minItems": 3, "uniqueItems": True}
VALUES = ["a", "ab", "abc", "b", "c", "é", 'q"', "z"]
LISTED = {"type": "array", "items": {"enum": VALUES}, "uniqueItems": True}
NUM_WORDS = -(-SMOLLM2_WIDTH // 32)
PERSON = {
    "type": "object",
    "properties": {
        "names": {"$ref": "#/$defs/names"},
        "words": {"type": "array", "items": {"type": "string"}},
        "friends": {"type": "array", "items": {"$ref": "#"}},
    },
    "additionalProperties": False,
    "$defs": {"names": {"type": "array", "items": {"type": "string", "minLength": 1}, "uniqueItems": True}},
}


def read(schema: dict[str, Any], *parts: bytes) -> Reader | None:
    reader: Reader | None = Reader(Places(schema).root)
    for part in parts:
        assert reader is not None
        reader = reader.read(part)
    return reader


@pytest.mark.parametrize(
    ("text", "is_new"),
    [
        (b'["a","b"]', True),
        (b'["a","a"', False),
        (b'["a", "b", "a"', False),
        (b'["a","a', True),
        (b'["",""', False),
        (rb'["\"","\\"]', True),
        (rb'["\"","\""', False),
        (rb'["a\\","a\\"', False),
        (rb'["\n","n"]', True),
        ('["é","é"'.encode(), False),
    ],
)
def test_a_repeated_string_is_found_however_the_text_is_split(text: bytes, is_new: bool) -> None:
    for i in range(len(text)):
        assert (read(MARKED, text[:i], text[i:]) is not None) is is_new
    assert (read(MARKED, text) is not None) is is_new


def test_only_marked_arrays_are_guarded() -> None:
    one = {"a": "x"}
    assert admits(PERSON, {"names": ["a", "b"], "words": ["a", "a"]}, {"names": ["a", "a"]}) == [True, False]
    assert admits(PERSON, {"names": ["a"], "friends": [{"names": ["a"]}, {"names": ["a"]}]}) == [True]
    assert admits(PERSON, {"names": ["a"], "friends": [{"names": ["b", "b"]}]}) == [False]
    assert admits({"properties": {"a": FREE}, "type": "object"}, one, {"b": ["x", "x"]}) == [False, True]


def test_the_values_of_a_long_list_come_in_any_order() -> None:
    assert admits(LISTED, VALUES, VALUES[::-1], ["ab", "a"]) == [True, True, True]
    assert admits(LISTED, [*VALUES, "a"], ["a", "a"]) == [False, False]


def test_a_listed_string_without_an_unused_rest_is_not_begun() -> None:
    matcher = automaton(schema_spec(LISTED))
    text = json.dumps(VALUES[:3], separators=(",", ":"))[:-1]
    assert matcher.consume_tokens(ALPHABET.spell(f'{text},"'.encode()) or [])
    bits = matcher.compute_bitmask()
    allowed = {byte for byte, i in ALPHABET.byte_ids.items() if bits[i >> 3] >> (i & 7) & 1}
    assert allowed == {ord("b"), ord("c"), ord("q"), ord("z"), "é".encode()[0]}


def test_after_all_values_of_a_list_only_its_end_follows() -> None:
    matcher = automaton(schema_spec(LISTED))
    text = json.dumps(VALUES, ensure_ascii=False, separators=(",", ":"))[:-1]
    assert matcher.consume_tokens(ALPHABET.spell(text.encode()) or [])
    bits = matcher.compute_bitmask()
    assert [byte for byte, i in ALPHABET.byte_ids.items() if bits[i >> 3] >> (i & 7) & 1] == [ord("]")]


def test_rollback_forgets_the_strings_it_removes() -> None:
    matcher = automaton(schema_spec(FREE))
    ids = ALPHABET.spell(b'["a","b"') or []
    assert matcher.try_consume_tokens(ids) == len(ids)
    twin = matcher.deep_copy()
    matcher.rollback(4)
    again = ALPHABET.spell(b',"a"') or []
    assert matcher.try_consume_tokens(again) == len(again) - 1
    assert twin.validate_tokens(ALPHABET.spell(b',"b","c"]') or []) == 3
    assert twin.validate_tokens(ALPHABET.spell(b',"c"]') or []) == 5


def repeat(constraint: GrammarConstraint, grammars: Grammars, room: int, rng: random.Random) -> str:
    """A model that writes the shortest strings that it may, with tokens of several characters."""
    texts, written = grammars._tokens.texts, list[int]()
    while not constraint.must_stop() and len(written) < room:
        path = constraint.closing(room - len(written))
        if path is not None:
            return b"".join(texts[i] for i in [*written, *path]).decode()
        (allowed,) = masks(constraint, [], NUM_WORDS)
        assert allowed
        usual = [i for i in allowed if set(texts[i]) <= set(b'a b",')] or sorted(allowed)
        token_id = max(usual, key=lambda i: (texts[i].count(b'"'), rng.random()))
        if constraint.legal_prefix([token_id]):
            constraint.advance([token_id])
            written.append(token_id)
    return b"".join(texts[i] for i in written).decode()


@pytest.mark.parametrize("schema", [FREE, {**LISTED, "minItems": 4}, {**LISTED, "minItems": 8}])
@pytest.mark.parametrize("room", [30, 60, 200])
def test_tokens_of_several_strings_do_not_repeat_one(smollm2: Grammars, schema: Any, room: int) -> None:
    for seed in range(3):
        for open_ in (constrain, spaced):
            text = repeat(open_(smollm2, schema), smollm2, room, random.Random(seed))
            assert validate_output(schema, text) is None, text


def test_a_token_that_closes_two_equal_strings_is_refused(smollm2: Grammars) -> None:
    texts = smollm2._tokens.texts
    constraint = constrain(smollm2, {**FREE, "minItems": 0})
    constraint.advance(smollm2._tokens.encode(b'["'))
    token_id = texts.index(b'","')
    assert constraint.legal_prefix([token_id, token_id]) == 1
    constraint.advance([token_id])
    assert token_id not in masks(constraint, [], NUM_WORDS)[0]
    assert not accepts(schema_spec(FREE), '["","","a"]')
