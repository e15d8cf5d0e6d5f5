"""Which schemas with `uniqueItems` can be guarded: a string that is new must be left wherever one must follow."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.compile.rewrite.refusal import Unenforceable
from quicksilver.constrain.places import Kind, Places, dead_ends, is_extendable_pattern, mark, strings_of
from quicksilver.constrain.source import FormatKind, Policy, ResponseFormat, Thinking
from tests.constrain.walks import schema_spec

TEXT = {"type": "string"}
NAMES = {"enum": list("abcdefghij")}


def unique(items: Any, **words: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "uniqueItems": True, **words}


@pytest.mark.parametrize(
    "schema",
    [
        unique(TEXT, minItems=2, maxItems=9),
        unique({"type": "string", "minLength": 3}),
        unique({"type": "string", "pattern": "^[a-z][a-z0-9_-]*$"}),
        unique({"type": "string", "pattern": "^https:"}),
        unique(NAMES, minItems=5),
        unique({"anyOf": [NAMES, TEXT]}),
        unique({"$ref": "#/$defs/n"}) | {"$defs": {"n": {"allOf": [NAMES, TEXT]}}},
        {"anyOf": [unique(TEXT), {"type": "array", "items": {"type": "integer"}}, TEXT]},
        {"type": "object", "additionalProperties": unique(NAMES)},
    ],
)
def test_arrays_of_strings_are_guaranteed(schema: Any) -> None:
    spec = schema_spec(schema)
    assert not spec.needs_validation
    assert "uniqueItems" in spec.grammar


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "uniqueItems": True},
        unique({"type": "integer"}),
        unique({"type": "object"}),
        unique({"type": ["string", "null"]}),
        unique({"type": "string", "maxLength": 3}),
        unique({"type": "string", "pattern": "^[a-z]{2}$"}),
        unique({"type": "string", "pattern": "^(x|[a-z]+)$"}),
        unique({"type": "string", "format": "date"}),
        unique({"allOf": [{"type": "string", "pattern": "a$"}, {"pattern": "^[a-z]+$"}]}),
        unique({"anyOf": [{"type": "string", "pattern": "^[a-z]+$"}, NAMES]}),
        unique({"enum": [*"abcdefghij", "\u200b"]}),
        unique(TEXT, prefixItems=[TEXT]),
        {"anyOf": [unique(NAMES), unique({"enum": list("klmnopqrst")})]},
        {"anyOf": [unique(TEXT), {"type": "array", "items": NAMES}]},
        {"anyOf": [unique(NAMES), {"type": "array", "items": NAMES, "minItems": 11}]},
        {"allOf": [unique(TEXT), {"enum": [["a", "b"], ["a", "a"]]}]},
    ],
)
def test_what_could_run_out_of_strings_is_refused_by_name(schema: Any) -> None:
    with pytest.raises(Unenforceable, match="`uniqueItems`"):
        schema_spec(schema)
    assert schema_spec(schema, Policy.VALIDATED).needs_validation


def test_a_refusal_names_the_array_that_cannot_be_guarded() -> None:
    schema = {"type": "object", "properties": {"a": unique(TEXT), "b": unique({"type": "string", "maxLength": 3})}}
    with pytest.raises(Unenforceable, match="/properties/b"):
        schema_spec(schema)
    spec = schema_spec(schema, Policy.VALIDATED)
    assert spec.needs_validation
    assert mark("/properties/a")["$comment"] in spec.grammar
    assert mark("/properties/b")["$comment"] not in spec.grammar


def test_text_that_does_not_begin_with_the_json_is_not_guarded() -> None:
    wanted = ResponseFormat(FormatKind.JSON_SCHEMA, unique(TEXT), thinking=Thinking("</think>"))
    with pytest.raises(Unenforceable, match="`uniqueItems`"):
        compile_response_format(wanted)


@pytest.mark.parametrize(
    ("pattern", "is_extendable"),
    [
        ("a", True),
        ("^a|b", True),
        ("^[a-z]+$", True),
        (r"^v\d+\.\d+$", True),
        ("^[A-Za-z_]*$", True),
        ("^a$", False),
        ("^a|b$", False),
        ("^[a-z]$", False),
        ("^[^a-z]+$", False),
        (r"^\w{2}$", False),
        (r"^[a-z]+\$", False),
        (r"a\b", False),
        ("^[!-/]+$", False),
    ],
)
def test_patterns_that_can_be_continued(pattern: str, is_extendable: bool) -> None:
    assert is_extendable_pattern(pattern) is is_extendable


def test_strings_of_joined_schemas() -> None:
    two, one = {"enum": ["a", "b", 1]}, {"type": "string", "enum": ["b", "c"]}
    assert strings_of({"allOf": [two, one]}, {}) == frozenset("b")
    assert strings_of({"anyOf": [two, one]}, {}) == frozenset("abc")
    assert strings_of({"anyOf": [two, TEXT]}, {}) is Kind.ANY
    assert strings_of({"allOf": [TEXT, {"minLength": 2}]}, {}) is Kind.LONG
    assert strings_of({"allOf": [one, {"minLength": 2}]}, {}) is Kind.UNKNOWN
    assert strings_of({"type": ["integer", "null"], "maxLength": 2}, {}) == frozenset()
    assert strings_of({"not": TEXT}, {}) is Kind.UNKNOWN
    circle = {"d0": {"anyOf": [TEXT, {"$ref": "#/$defs/d0"}]}}
    assert strings_of({"$ref": "#/$defs/d0"}, circle) is Kind.UNKNOWN


def test_a_recursive_schema_has_few_places() -> None:
    tree = {"type": "object", "properties": {"tags": {**mark("/tags"), "type": "array", "items": TEXT}}}
    tree["additionalProperties"] = {"$ref": "#/$defs/d0"}
    schema = {"$ref": "#/$defs/d0", "$defs": {"d0": tree}}
    places = list(Places(schema).all())
    assert len(places) == len({id(place) for place in places}) < 8
    assert sum(place.is_unique for place in places) == 1
    assert not dead_ends(schema)
