"""Literal words of a grammar's patterns."""

from __future__ import annotations

import json

from quicksilver.constrain.runtime.literals import MAX_WORDS, runs_of, words_of


def test_words_are_literal_runs_and_members_of_classes() -> None:
    assert list(runs_of(r"^(?:ab|\.cd)[x-z]+\d{2,3}e?$")) == ["ab", ".cd", "x", "0", "e"]
    assert list(runs_of(r"\x41b")) == ["Ab"]


def test_words_come_from_schema_patterns_and_lark_in_order() -> None:
    grammar = {"grammars": [{"json_schema": {"properties": {"a": {"pattern": "ab|cd"}}}}, {"lark_grammar": "x"}]}
    assert words_of(json.dumps(grammar)) == (b"ab", b"cd", b"x")


def test_the_number_of_words_is_bounded() -> None:
    grammar = {"grammars": [{"json_schema": {"pattern": "|".join(f"w{i}" for i in range(100))}}]}
    assert len(words_of(json.dumps(grammar))) == MAX_WORDS
