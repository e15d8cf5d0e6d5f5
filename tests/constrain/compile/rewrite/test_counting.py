"""Counts of properties and items, unique items, unevaluated members."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.constrain.compile.rewrite.refusal import Unenforceable
from quicksilver.constrain.source import Policy
from quicksilver.errors import InvalidGrammar
from tests.constrain.walks import admits, schema_spec

ABC = {"type": "object", "properties": {name: {"type": "null"} for name in "abc"}, "additionalProperties": False}


def having(names: str) -> dict[str, None]:
    return dict.fromkeys(names)


@pytest.mark.parametrize(
    ("least", "most"), [(1, None), (2, None), (None, 1), (None, 2), (1, 1), (1, 2), (0, 3), (3, 3)]
)
def test_property_counts_over_listed_properties(least: int | None, most: int | None) -> None:
    counts = {"minProperties": least, "maxProperties": most}
    schema = {**ABC, **{word: value for word, value in counts.items() if value is not None}}
    sets = ["", "a", "b", "ac", "bc", "abc"]
    expected = [(least or 0) <= len(names) <= (3 if most is None else most) for names in sets]
    assert admits(schema, *map(having, sets)) == expected


def test_required_properties_count_towards_the_minimum() -> None:
    schema = {**ABC, "required": ["a"], "minProperties": 2}
    assert admits(schema, having("a"), having("ab"), having("bc")) == [False, True, False]


def test_one_unlisted_property_can_be_required_but_not_two() -> None:
    assert admits({"type": "object", "minProperties": 1}, {}, {"x": 1}) == [False, True]
    with pytest.raises(Unenforceable, match="repeat a name"):
        schema_spec({"type": "object", "minProperties": 2})


def test_a_maximum_below_the_required_properties_is_refused() -> None:
    schema = {"anyOf": [{**ABC, "required": ["a", "b"], "maxProperties": 1}, {"type": "null"}]}
    assert admits(schema, having("ab"), having("a"), None) == [False, False, True]


def test_too_many_sets_of_properties_are_refused() -> None:
    many = {"type": "object", "properties": {f"p{i}": {} for i in range(20)}, "minProperties": 10}
    with pytest.raises(Unenforceable, match="`minProperties`"):
        schema_spec(many)


@pytest.mark.parametrize(
    ("words", "taken", "refused"),
    [
        ({}, [["x"], [1, "x"], [1, 2, 3, "x", 4]], [[], [1, 2]]),
        ({"minContains": 2}, [["x", "y"], ["x", "y", 1]], [["x"], []]),
        ({"minContains": 0}, [[], [1]], []),
        ({"maxContains": 1}, [["x"], ["x", 1]], [["x", "y"], [], [1]]),
        ({"minContains": 0, "maxContains": 0}, [[], [1]], [["x"]]),
        ({"minContains": 2, "maxContains": 1}, [], [["x"], ["x", "y"], []]),
        ({"maxItems": 1}, [["x"]], [[1, "x"], []]),
    ],
)
def test_contains(words: dict[str, Any], taken: list[Any], refused: list[Any]) -> None:
    schema = {"type": ["array", "null"], "contains": {"type": "string"}, **words}
    assert admits(schema, *taken, None) == [True] * (len(taken) + 1)
    assert admits(schema, *refused) == [False] * len(refused)


def test_distinct_items_of_a_short_list_in_any_order() -> None:
    schema = {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 1}
    assert admits(schema, ["a"], ["c", "a"], ["b", "c", "a"]) == [True] * 3
    assert admits(schema, [], ["a", "a"], ["a", "b", "a"]) == [False] * 3


def test_distinct_items_of_a_longer_list_in_its_order() -> None:
    schema = {"type": "array", "items": {"enum": list("abcdef")}, "uniqueItems": True}
    assert admits(schema, ["a", "f"], list("abcdef"), ["f", "a"], ["a", "a"]) == [True, True, False, False]


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        ({"maxItems": 1, "items": {"type": "string"}}, ["x"], ["x", "x"]),
        ({"items": {"type": "boolean"}}, [True, False], [True, True]),
        ({"prefixItems": [{"type": "string"}, {"type": "null"}], "items": False}, ["x", None], ["x", "x"]),
    ],
)
def test_distinct_items_where_nothing_can_repeat(schema: dict[str, Any], taken: list[Any], refused: list[Any]) -> None:
    assert admits({"type": "array", "uniqueItems": True, **schema}, taken, refused) == [True, False]


def test_distinct_items_of_a_reference() -> None:
    schema = {
        "$defs": {"day": {"enum": ["mon", "tue"]}},
        "type": "array",
        "items": {"$ref": "#/$defs/day"},
        "uniqueItems": True,
    }
    assert admits(schema, ["tue", "mon"], ["mon", "mon"]) == [True, False]


def test_unevaluated_properties_see_through_references() -> None:
    schema = {
        "$defs": {"base": {"properties": {"id": {"type": "integer"}}}},
        "type": "object",
        "allOf": [{"$ref": "#/$defs/base"}],
        "properties": {"x": {"type": "null"}},
        "unevaluatedProperties": False,
    }
    assert admits(schema, {"id": 1, "x": None}, {"id": 1, "y": 1}) == [True, False]
    open_base = {**schema, "$defs": {"base": {"additionalProperties": {"type": "integer"}}}}
    assert admits(open_base, {"y": 1}, {"y": "s"}) == [True, False]


def test_unevaluated_items_are_those_after_the_prefix() -> None:
    schema = {"type": "array", "prefixItems": [{"type": "null"}], "unevaluatedItems": {"type": "string"}}
    assert admits(schema, [None, "a"], [None, 1]) == [True, False]
    assert admits({**schema, "items": {"type": "integer"}}, [None, 1], [None, "a"]) == [True, False]


def unique(items: Any, least: int, **words: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "uniqueItems": True, **words}


CONTRADICTIONS = [
    unique({"type": "array", "maxItems": 0}, 2),
    unique({"type": "string", "maxLength": 0}, 2),
    unique({"type": "object", "maxProperties": 0}, 2),
    unique({"type": "boolean"}, 3),
    unique({"type": ["boolean", "null"]}, 4),
    unique({"type": "integer", "minimum": 1, "maximum": 3}, 4),
    unique({"enum": [1, 1.0]}, 2),
    unique({"anyOf": [{"const": "a"}, {"const": "b"}, {"type": "null"}]}, 4),
    unique({"allOf": [{"type": "string"}, {"enum": ["a", "b"]}]}, 3),
    unique({"$ref": "#/$defs/flag"}, 3, **{"$defs": {"flag": {"type": "boolean"}}}),
    unique(True, 2, prefixItems=[{"const": 1}, {"const": 1}]),
]


@pytest.mark.parametrize("schema", CONTRADICTIONS)
@pytest.mark.parametrize("policy", list(Policy))
def test_more_unique_items_than_values_are_refused(schema: dict[str, Any], policy: Policy) -> None:
    required = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    for contradiction in (schema, {**required, **({"$defs": schema["$defs"]} if "$defs" in schema else {})}):
        with pytest.raises(InvalidGrammar, match="no value satisfies"):
            schema_spec(contradiction, policy)


def test_as_many_unique_items_as_values_are_admitted() -> None:
    schema = unique({"type": "integer", "minimum": 1, "maximum": 3}, 3)
    assert admits(schema, [1, 2, 3], [3, 1, 2], [1, 2, 2], [1, 2], [1, 2, 4]) == [True, True, False, False, False]


def test_a_recursive_item_schema_has_no_short_list_of_values() -> None:
    node = {"anyOf": [{"type": "null"}, *({"$ref": "#/$defs/node"} for _ in range(6))]}
    assert schema_spec(unique({"$ref": "#/$defs/node"}, 2, **{"$defs": {"node": node}}), Policy.VALIDATED).grammar
