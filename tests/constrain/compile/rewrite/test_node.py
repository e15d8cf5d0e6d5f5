"""Schemas of every draft are read into one canonical form."""

from __future__ import annotations

import pytest

from quicksilver.constrain.compile.rewrite.node import Document, conjuncts, json_type, same_value
from quicksilver.constrain.compile.rewrite.refusal import Unenforceable
from quicksilver.constrain.compile.rewrite.vocabulary import Draft
from tests.constrain.walks import admits

DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}


def test_draft_four_marks_exclusive_bounds_with_a_boolean() -> None:
    schema = {**DRAFT_4, "type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 9}
    assert admits(schema, 3, 4, 9) == [False, True, True]
    assert admits({**schema, "exclusiveMinimum": False}, 3) == [True]


def test_a_list_of_items_is_a_prefix_in_old_drafts() -> None:
    schema = {**DRAFT_7, "type": "array", "items": [{"type": "null"}], "additionalItems": {"type": "string"}}
    assert admits(schema, [None, "x"], [None, 1], ["x"]) == [True, False, False]


def test_a_schema_without_a_draft_gets_the_newest_that_fits_it() -> None:
    assert admits({"type": "array", "items": [{"type": "null"}], "additionalItems": False}, [None], [None, 1]) == [
        True,
        False,
    ]


def test_keywords_beside_a_reference_count_only_in_newer_drafts() -> None:
    body = {"definitions": {"s": {"type": "string"}}, "$ref": "#/definitions/s", "maxLength": 1}
    assert admits({**DRAFT_7, **body}, "long") == [True]
    assert admits(body, "long", "s") == [False, True]


def test_a_keyword_of_a_newer_draft_is_enforced_but_proves_nothing() -> None:
    branches = [{"const": 1}, {"const": 2}]
    assert admits({**DRAFT_4, "type": "integer", "const": 5}, 5, 6) == [True, False]
    document = Document({**DRAFT_4, "oneOf": branches}, Draft.FOUR)
    first = document.root.get("oneOf")[0]
    assert first.words == {}
    assert first.extra == {"enum": [1]}


def test_const_and_enum_are_intersected() -> None:
    assert admits({"enum": [1, 2], "const": 2}, 1, 2) == [False, True]


def test_counts_may_be_written_as_floats() -> None:
    assert admits({"type": "string", "minLength": 2.0}, "a", "ab") == [False, True]


def test_annotations_and_unknown_words_are_dropped() -> None:
    node = Document({"title": "t", "default": 1, "x-mine": {}, "examples": [1]}, Draft.Y2020).root
    assert node.words == {}


def test_what_is_not_a_schema_is_refused_with_its_place() -> None:
    with pytest.raises(Unenforceable, match="/properties/a"):
        Document({"properties": {"a": 3}}, Draft.Y2020)


def test_conjuncts_follow_references_and_all_of() -> None:
    document = Document({"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"type": "null"}}}, Draft.Y2020)
    assert any(node.get("type") == ("null",) for node in conjuncts(document, document.root))


def test_conjuncts_of_a_loop_end() -> None:
    document = Document({"$ref": "#"}, Draft.Y2020)
    assert len(conjuncts(document, document.root)) < 20


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [(1, 1.0, True), (1, True, False), (0, False, False), ([1], [1.0], True), ({"a": 1}, {"a": True}, False)],
)
def test_equality_of_json_values(a: object, b: object, same: bool) -> None:
    assert same_value(a, b) is same


def test_names_of_json_types() -> None:
    values = [None, True, 1, 1.5, "s", [], {}]
    assert [json_type(value) for value in values] == [
        "null",
        "boolean",
        "number",
        "number",
        "string",
        "array",
        "object",
    ]
