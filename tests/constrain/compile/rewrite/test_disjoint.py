"""Proofs of disjointness: found where there is one, and never wrong."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings

from quicksilver.constrain.compile.rewrite.disjoint import Disjoint
from quicksilver.constrain.compile.rewrite.node import Document
from quicksilver.constrain.compile.rewrite.vocabulary import Draft
from tests.constrain.schemas import instances, schemas


def disjoint(a: Any, b: Any, **definitions: Any) -> bool:
    document = Document({"anyOf": [a, b], "$defs": definitions}, Draft.Y2020)
    first, second = document.root.get("anyOf")
    return Disjoint(document).holds(first, second)


def kind(value: str, required: bool = True) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"kind": {"const": value}},
        **({"required": ["kind"]} if required else {}),
    }


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"type": "string"}, {"type": ["null", "integer"]}),
        ({"const": 1}, {"const": 2}),
        ({"enum": ["a"]}, {"type": "string", "minLength": 2}),
        ({"enum": [1, 2]}, {"type": "integer", "minimum": 3}),
        ({"enum": ["a"]}, {"pattern": "^b", "type": "string"}),
        ({"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3}),
        ({"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}),
        ({"type": "string", "pattern": "^ab"}, {"type": "string", "maxLength": 1}),
        ({"type": "number", "maximum": 1}, {"type": "number", "exclusiveMinimum": 1}),
        ({"type": "number", "exclusiveMaximum": 1}, {"type": "number", "minimum": 1}),
        (kind("x"), kind("y")),
        (kind("x"), kind("y", required=False)),
        (
            {"type": "object", "required": ["a"]},
            {"type": "object", "properties": {"b": {}}, "additionalProperties": False},
        ),
        ({"type": "object", "required": ["a"]}, {"type": "object", "properties": {"a": False}}),
        ({"type": "array", "minItems": 3}, {"type": "array", "maxItems": 2}),
        (
            {"type": "array", "items": {"type": "null"}, "minItems": 1},
            {"type": "array", "prefixItems": [{"type": "string"}]},
        ),
        ({"anyOf": [{"type": "null"}, {"const": 3}]}, {"type": "string"}),
        ({"allOf": [{"type": "string"}, {"maxLength": 1}]}, {"type": "string", "minLength": 2}),
        (False, {}),
        ({"$ref": "#/$defs/text"}, {"type": "null"}),
    ],
)
def test_disjoint_schemas_are_proved_so_both_ways(a: Any, b: Any) -> None:
    assert disjoint(a, b, text={"type": "string"})
    assert disjoint(b, a, text={"type": "string"})


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({}, {"type": "string"}),
        ({"type": "integer"}, {"type": "number"}),
        (kind("x", required=False), kind("y", required=False)),
        ({"required": ["a"]}, {"properties": {"a": False}}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "email"}),
        ({"type": "string", "pattern": r"^\s$"}, {"type": "string", "pattern": "^\u0085$"}),
        ({"type": "array", "items": {"type": "null"}}, {"type": "array", "items": {"type": "string"}}),
        ({"$ref": "#/$defs/loop"}, {"type": "string"}),
    ],
)
def test_overlapping_schemas_are_not_proved_disjoint(a: Any, b: Any) -> None:
    assert not disjoint(a, b, loop={"anyOf": [{"$ref": "#/$defs/loop"}, {}]})


@settings(max_examples=200, deadline=None)
@given(schemas(), schemas(), instances())
def test_a_proof_is_never_wrong(a: Any, b: Any, instance: Any) -> None:
    if disjoint(a, b):
        assert not (jsonschema_rs.is_valid(a, instance) and jsonschema_rs.is_valid(b, instance))
