"""Definitions that no finite value satisfies are removed from alternatives, and refused where they are needed."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest

from quicksilver.constrain.compile.response_format import write_schema
from quicksilver.constrain.compile.rewrite.finite import endless, without
from quicksilver.constrain.compile.rewrite.vocabulary import Json
from quicksilver.constrain.source import Layout, Policy
from quicksilver.errors import InvalidGrammar

SELF = {"$ref": "#"}
ENDLESS = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
TO_NODE = {"$ref": "#/$defs/node"}


def written(schema: dict[str, Any]) -> dict[str, Any]:
    grammar, _ = write_schema(schema, Policy.GUARANTEED, Layout.COMPACT)
    return dict(grammar["json_schema"])


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        (SELF, "/"),
        ({"type": "object", "properties": {"child": SELF}, "required": ["child"]}, "/"),
        ({"type": "array", "items": SELF, "minItems": 1}, "/"),
        ({"type": "array", "prefixItems": [SELF], "minItems": 1}, "/"),
        ({"type": "array", "items": {"anyOf": [TO_NODE]}, "minItems": 2, "$defs": {"node": ENDLESS}}, "/$defs/node"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "/$defs/a"),
    ],
)
def test_a_schema_without_a_finite_value_is_refused_with_its_pointer(schema: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidGrammar, match=re.escape(f"`$ref` to '{pointer}': no finite value")):
        written(schema)


def test_alternatives_and_optional_properties_without_a_finite_value_are_left_out() -> None:
    branches = written({"anyOf": [{"type": "integer"}, TO_NODE], "$defs": {"node": ENDLESS}})
    assert b"$ref" not in orjson.dumps(branches)
    optional = {"type": "object", "properties": {"n": {"type": "integer"}, "x": TO_NODE}, "required": ["n"]}
    found = written({**optional, "$defs": {"node": ENDLESS}})
    assert (found["properties"]["x"], found["$defs"]) == (False, {})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"children": {"type": "array", "items": SELF}}, "required": ["children"]},
        {"type": "object", "properties": {"child": SELF}},
        {"type": ["object", "null"], "properties": {"child": SELF}, "required": ["child"]},
        {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"child": SELF}, "required": ["child"]}]},
    ],
)
def test_recursion_that_can_end_is_kept(schema: dict[str, Any]) -> None:
    assert b"$ref" in orjson.dumps(written(schema))


def test_endless_definitions_are_what_a_least_fixed_point_does_not_reach() -> None:
    to = {name: {"$ref": f"#/$defs/{name}"} for name in "abcd"}
    definitions: dict[str, Json] = {
        "a": {"allOf": [to["b"], {"type": "object"}]},
        "b": {"type": "object", "properties": {"x": to["a"]}, "required": ["x"]},
        "c": {"oneOf": [to["a"], to["d"]]},
        "d": {"type": "string"},
    }
    assert endless(definitions) == {"a", "b"}


def test_a_value_that_looks_like_a_reference_is_kept() -> None:
    schema = {"anyOf": [{"$ref": "#/$defs/a"}, {"enum": [{"$ref": "#/$defs/a"}]}]}
    assert without(schema, {"a"}) == {"anyOf": [False, {"enum": [{"$ref": "#/$defs/a"}]}]}
