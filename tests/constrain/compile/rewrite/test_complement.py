"""Complements admit only what the other schema refuses, and are exact where that can be written."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings

from quicksilver.constrain.compile.rewrite.node import Document
from quicksilver.constrain.compile.rewrite.rewriter import Rewriter
from quicksilver.constrain.compile.rewrite.vocabulary import Draft
from quicksilver.constrain.source import Policy
from quicksilver.errors import InvalidGrammar
from tests.constrain.schemas import instances, schemas


def complement(schema: Any, **definitions: Any) -> tuple[Any, bool]:
    """The complement, and whether it was exact."""
    document = Document({"anyOf": [schema], "$defs": definitions}, Draft.Y2020)
    rewriter = Rewriter(document, Policy.VALIDATED)
    written = rewriter.complement(document.root.get("anyOf")[0])
    return written, rewriter.num_lost == 0


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({"type": "string"}, ["x"], [1, None, [], {}]),
        ({"enum": ["a", 1, True]}, ["a", 1, True], ["b", 2, False, None]),
        ({"minimum": 3}, [3, "x"], [2]),
        ({"exclusiveMaximum": 3}, [2], [3, 4]),
        ({"minLength": 2}, ["ab", 1], ["a"]),
        ({"maxLength": 2}, ["ab"], ["abc"]),
        ({"minItems": 1}, [[1], "x"], [[]]),
        ({"maxItems": 1}, [[1]], [[1, 2]]),
        ({"required": ["a"]}, [{"a": 1}, 3], [{}]),
        ({"properties": {"a": {"type": "null"}}}, [{"a": None}, {}], [{"a": 1}]),
        ({"prefixItems": [{"type": "null"}]}, [[None], []], [[1]]),
        ({"contains": {"type": "null"}}, [[None]], [[], [1]]),
        ({"minProperties": 1}, [{"a": 1}], [{}]),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, [None, "x"], [1]),
        ({"allOf": [{"type": "integer"}, {"minimum": 2}]}, [3], [1]),
        ({"oneOf": [{"minimum": 2}, {"maximum": 5}]}, [1, 6], [3]),
        ({"not": {"type": "null"}}, [1], [None]),
        ({"if": {"type": "string"}, "then": {"minLength": 1}, "else": {"type": "null"}}, ["a", None], ["", 1]),
        ({"dependentRequired": {"a": ["b"]}}, [{}, {"a": 1, "b": 1}], [{"a": 1}]),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, [{"b": 1}], [{"a": 1}]),
        ({"items": {"type": "null"}}, [[None], []], [[1]]),
        (True, [1], []),
        (False, [], [1]),
    ],
)
def test_a_complement_separates(schema: Any, inside: list[Any], outside: list[Any]) -> None:
    written, _ = complement(schema)
    assert not any(jsonschema_rs.is_valid(written, value) for value in inside)
    assert all(jsonschema_rs.is_valid(written, value) for value in outside)


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "a"},
        {"type": "integer"},
        {"uniqueItems": True},
        {"format": "date"},
        {"enum": [[1], {}]},
        {"multipleOf": 2},
    ],
)
def test_an_alternative_that_cannot_be_written_is_counted(schema: Any) -> None:
    assert complement(schema)[1] is False


def test_a_loop_of_references_ends_and_is_counted() -> None:
    written, is_exact = complement({"$ref": "#/$defs/x"}, x={"anyOf": [{"$ref": "#/$defs/x"}, {"type": "null"}]})
    assert written is False
    assert not is_exact


@settings(max_examples=300, deadline=None)
@given(schemas(), instances())
def test_a_complement_never_holds_an_instance(schema: Any, instance: Any) -> None:
    document = Document({"anyOf": [schema]}, Draft.Y2020)
    try:
        outside = Rewriter(document, Policy.GUARANTEED).complement(document.root.get("anyOf")[0])
    except InvalidGrammar:
        return
    if jsonschema_rs.is_valid(outside, instance):
        assert not jsonschema_rs.is_valid(schema, instance)


def test_more_alternatives_that_cannot_be_written() -> None:
    for schema in ({"enum": list(range(40))}, {"enum": ["x" * 300]}, {"minProperties": 2}, {"enum": [2**60]}):
        assert complement(schema)[1] is False


def test_an_optional_item_cannot_be_missing() -> None:
    assert complement({"contains": {"type": "null"}, "minContains": 2})[0] is False
