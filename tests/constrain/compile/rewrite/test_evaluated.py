"""`unevaluated*` beside branches: what a branch evaluates is admitted where the branch applies, and only there."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.constrain.compile.rewrite.refusal import Unenforceable
from tests.constrain.walks import admits, schema_spec

CLOSED = {"type": "object", "unevaluatedProperties": False}
CLOSED_LIST = {"type": "array", "unevaluatedItems": False}


def having(name: str, **more: Any) -> dict[str, Any]:
    """A schema that evaluates one property, and requires it."""
    return {"properties": {name: {"type": "integer"}}, "required": [name], **more}


@pytest.mark.parametrize(
    ("schema", "admitted", "refused"),
    [
        ({**CLOSED, "anyOf": [having("a"), having("b")]}, [{"a": 1}, {"b": 1}], [{"a": 1, "c": 1}, {}]),
        ({**CLOSED, "oneOf": [having("a"), having("b")]}, [{"a": 1}, {"b": 1}], [{"a": 1, "b": 1}]),
        ({**CLOSED, "not": having("a"), **having("b")}, [{"b": 1}], [{"b": 1, "a": "x"}]),
        ({**CLOSED, "if": having("a"), "then": having("b")}, [{}, {"a": 1, "b": 1}], [{"a": 1}, {"b": 1}]),
        ({**CLOSED, "if": having("a"), "else": having("b")}, [{"a": 1}, {"b": 1}], [{"a": 1, "b": 1}, {}]),
        (
            {**CLOSED, "properties": {"a": {}}, "dependentSchemas": {"a": having("b")}},
            [{}, {"a": 1, "b": 1}],
            [{"b": 1}, {"a": 1}],
        ),
        ({**CLOSED, "anyOf": [having("a"), {"required": ["b"], "additionalProperties": {}}]}, [{"b": 1, "c": 1}], [{}]),
        ({**CLOSED, "allOf": [{"unevaluatedProperties": {"type": "null"}}]}, [{"x": None}], [{"x": 1}]),
        (
            {**CLOSED, "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {}}},
            [{"a": 1}],
            [{"b": 1}],
        ),
        (
            {**CLOSED_LIST, "anyOf": [{"prefixItems": [{"const": 1}, {}], "minItems": 1}, {"prefixItems": [{}]}]},
            [[1, 2], [3], []],
            [[3, 2], [1, 2, 3]],
        ),
        (
            {**CLOSED_LIST, "if": {"maxItems": 1}, "then": {"items": {"type": "null"}}},
            [[None], []],
            [[1], [None, None]],
        ),
    ],
)
def test_members_of_a_branch_that_applies_are_evaluated(schema: Any, admitted: list[Any], refused: list[Any]) -> None:
    assert admits(schema, *admitted, *refused) == [True] * len(admitted) + [False] * len(refused)


def test_branches_in_definitions_are_found() -> None:
    schema = {**CLOSED, "$ref": "#/$defs/one", "$defs": {"one": {"oneOf": [having("a"), having("b")]}}}
    assert admits(schema, {"a": 1}, {"b": 1}, {"a": 1, "c": 1}) == [True, True, False]


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({**CLOSED, "anyOf": [{"patternProperties": {"^a": {}}}, having("b")]}, "unevaluatedProperties"),
        ({**CLOSED_LIST, "contains": {"type": "null"}}, "unevaluatedItems"),
        (
            {**CLOSED, "allOf": [{"anyOf": [having(f"a{i}"), having(f"b{i}")]} for i in range(8)]},
            "unevaluatedProperties",
        ),
    ],
)
def test_what_depends_on_more_than_branches_is_refused_by_name(schema: Any, keyword: str) -> None:
    with pytest.raises(Unenforceable) as caught:
        schema_spec(schema)
    assert caught.value.keyword == keyword
