"""Contradicting alternatives are removed, and no others."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings

from quicksilver.constrain.compile.rewrite.node import Document, conjuncts
from quicksilver.constrain.compile.rewrite.prune import prune
from quicksilver.constrain.compile.rewrite.vocabulary import Draft
from tests.constrain.schemas import instances, schemas


def pruned(way: Any, *holding: Any) -> Any:
    document = Document({"allOf": list(holding)}, Draft.Y2020)
    return prune(document, way, conjuncts(document, document.root))


OBJECT = {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}, "b": False}}


@pytest.mark.parametrize(
    ("way", "holding"),
    [
        ({"type": ["null", "array"]}, {"type": "string"}),
        ({"enum": ["x", 1]}, {"enum": ["y", 2]}),
        ({"allOf": [{"type": "null"}, {}]}, {"type": "string"}),
        ({"type": "string", "anyOf": [{"enum": [1]}, {"type": "null"}]}, {"type": "string"}),
        ({"type": "object", "properties": {"a": False}}, OBJECT),
        ({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}, OBJECT),
        ({"type": "object", "required": ["b"]}, OBJECT),
    ],
)
def test_a_contradicting_alternative_is_removed(way: Any, holding: Any) -> None:
    assert pruned(way, holding) is False
    assert pruned({"anyOf": [way, {"title": "free"}]}, holding) == {"title": "free"}


def test_a_compatible_alternative_stays() -> None:
    way = {"type": "object", "properties": {"c": False}}
    assert pruned(way, OBJECT) == way
    assert pruned(True, OBJECT) is True


@settings(max_examples=200, deadline=None)
@given(schemas(), schemas(), instances())
def test_pruning_removes_no_instance(way: Any, holding: Any, instance: Any) -> None:
    if jsonschema_rs.is_valid(way, instance) and jsonschema_rs.is_valid(holding, instance):
        assert jsonschema_rs.is_valid(pruned(way, holding), instance)
