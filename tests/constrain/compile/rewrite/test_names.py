"""`patternProperties` that match every name, and `propertyNames`."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.constrain.compile.rewrite.refusal import Unenforceable
from tests.constrain.walks import admits, schema_spec

OBJECT = {"type": "object"}


@pytest.mark.parametrize(
    ("names", "good", "bad"),
    [
        ({"enum": ["x", "y"]}, {"x": 1}, {"z": 1}),
        ({"pattern": "^[a-c]+$"}, {"abc": 1}, {"abd": 1}),
        ({"minLength": 2, "maxLength": 3}, {"ab": 1}, {"a": 1}),
        (False, {}, {"a": 1}),
        ({"anyOf": [{"enum": ["a", "b."]}, {"pattern": "^x[0-9]+$"}]}, {"x12": 1}, {"bc": 1}),
        ({"anyOf": [{"enum": ["a"]}, {"pattern": "x"}]}, {"zxz": 1}, {"ab": 1}),
        ({"anyOf": [{"enum": ["a"]}, {"minLength": 0}]}, {"anything": 1}, []),
        ({"pattern": "^[a-z]+$", "minLength": 1, "format": "unknown"}, {"a": 1}, {"": 1}),
        ({"not": {"enum": ["a", "b"]}}, {"ab": 1}, {"a": 1}),
    ],
)
def test_property_names(names: Any, good: Any, bad: Any) -> None:
    assert admits({**OBJECT, "propertyNames": names}, good, bad) == [True, False]


@pytest.mark.parametrize(
    ("words", "good", "bad"),
    [
        ({"patternProperties": {".*": {"type": "integer"}}}, {"b": 2}, {"b": "x"}),
        ({"patternProperties": {"": False}}, {}, {"a": 1}),
        ({"patternProperties": {".*": {"type": "integer"}, "^a": {"minimum": 3}}}, {"a": 3, "b": 1}, {"a": "x"}),
        ({"patternProperties": {"^": {"type": "integer"}}, "properties": {"k": {"minimum": 2}}}, {"k": 2}, {"k": "x"}),
        ({"patternProperties": {".*": {"type": "integer"}}, "additionalProperties": False}, {"a": 1}, {"a": "x"}),
        (
            {"patternProperties": {".*": {"type": "null"}}, "propertyNames": {"pattern": "^a$"}},
            {"a": None},
            {"b": None},
        ),
    ],
)
def test_patterns_that_match_every_name(words: Any, good: Any, bad: Any) -> None:
    assert admits({**OBJECT, **words}, good, bad) == [True, False]


@pytest.mark.parametrize(
    "names",
    [
        {"pattern": "^[a-z]+$", "minLength": 2},
        {"anyOf": [{"enum": [1]}, {"enum": ["b"]}]},
        {"allOf": [{"pattern": "a"}, {"pattern": "b"}]},
    ],
)
def test_property_names_without_a_pattern_are_refused_by_name(names: Any) -> None:
    with pytest.raises(Unenforceable, match="`propertyNames`"):
        schema_spec({**OBJECT, "propertyNames": names})


def test_property_names_of_a_format_and_without_conditions() -> None:
    assert admits({**OBJECT, "propertyNames": {"format": "uuid"}}, {"x": 1}) == [False]
    assert admits({**OBJECT, "propertyNames": {"format": "unknown"}}, {"x": 1}) == [True]
    assert admits({**OBJECT, "propertyNames": {"type": "string"}}, {"x": 1}) == [True]
    assert admits({**OBJECT, "propertyNames": {"type": "integer"}}, {}, {"x": 1}) == [True, False]
    by_reference = {**OBJECT, "propertyNames": {"$ref": "#/$defs/n"}, "$defs": {"n": {"maxLength": 1}}}
    assert admits(by_reference, {"x": 1}, {"xy": 1}) == [True, False]
