"""Each keyword: the grammar admits instances only, and ordinary instances are admitted."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.constrain.compile.rewrite.refusal import Unenforceable
from quicksilver.constrain.source import Policy
from tests.constrain.walks import ALPHABET, accepts, admits, automaton, schema_spec

OBJECT = {"type": "object"}
A = {"properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "instance", "allowed"),
    [
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, None, True),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, 1, False),
        ({**OBJECT, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1}, True),
        ({**OBJECT, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1, "b": 1}, False),
        ({"oneOf": [{"type": "string"}, {"enum": ["x", "y"]}]}, "z", True),
        ({"oneOf": [{"type": "string"}, {"enum": ["x", "y"]}]}, "x", False),
        ({"oneOf": [{"minimum": 5, "type": "integer"}, {"maximum": 8, "type": "integer"}]}, 9, True),
        ({"oneOf": [{"minimum": 5, "type": "integer"}, {"maximum": 8, "type": "integer"}]}, 6, False),
        ({"type": "string", "not": {"enum": ["no", "nope"]}}, "nop", True),
        ({"type": "string", "not": {"enum": ["no", "nope"]}}, "nope", False),
        ({"type": "integer", "not": {"const": 7}}, 8, True),
        ({"type": "integer", "not": {"const": 7}}, 7, False),
        ({"not": {"type": ["string", "object"]}}, [], True),
        ({"not": {"type": ["string", "object"]}}, "", False),
        ({**OBJECT, "not": {"required": ["a", "b"]}}, {"a": 1}, True),
        ({**OBJECT, "not": {"required": ["a", "b"]}}, {"a": 1, "b": 1}, False),
        ({"not": {"not": {"type": "string"}}}, "s", True),
        ({"not": {"not": {"type": "string"}}}, 1, False),
        ({"properties": {"a": {"not": {}}}}, {"a": 1}, False),
        ({"properties": {"a": {"not": {}}}}, {"b": 1}, True),
    ],
)
def test_unions_and_negations(schema: Any, instance: Any, allowed: bool) -> None:
    assert admits(schema, instance) == [allowed]


def kind(name: str) -> dict[str, Any]:
    """An object with a `kind`, which other values match too, since it has no `type`."""
    return {"properties": {"kind": {"const": name}, name: {"oneOf": [{}, {"type": "null"}]}}, "required": ["kind"]}


def test_branches_that_differ_for_objects_only_admit_objects_only() -> None:
    schema = {"oneOf": [kind(f"k{i}") for i in range(40)]}
    assert (
        admits(schema, {"kind": "k7"}, {"kind": "k8", "k8": 1}, {"kind": "x"}, "text", 1, [])
        == [True] * 2 + [False] * 4
    )


def test_branches_that_limit_the_values_they_share_keep_the_others() -> None:
    schema = {"oneOf": [{"type": ["string", "null"]}, {"required": ["a"], "maxLength": 2}]}
    assert admits(schema, "long", "ab", None) == [True, False, False]


CONDITION = {
    "type": "object",
    "properties": {"kind": {"enum": ["circle", "square"]}, "r": {"type": "number"}, "side": {"type": "number"}},
    "required": ["kind"],
    "if": {"properties": {"kind": {"const": "circle"}}},
    "then": {"required": ["r"]},
    "else": {"required": ["side"]},
    "additionalProperties": False,
}


def test_a_condition_selects_its_branch() -> None:
    taken = admits(CONDITION, {"kind": "circle", "r": 1}, {"kind": "square", "side": 2})
    refused = admits(CONDITION, {"kind": "circle", "side": 1}, {"kind": "square", "r": 2}, {"kind": "square"})
    assert taken == [True, True]
    assert refused == [False, False, False]


def test_a_condition_without_branches_has_no_effect() -> None:
    assert admits({"if": {"type": "string"}, "type": ["string", "null"]}, "x", None) == [True, True]


def test_dependent_names_and_schemas() -> None:
    schema = {
        "type": "object",
        "properties": {"card": {"type": "string"}, "zip": {"type": "string"}, "tax": {"type": "integer"}},
        "dependentRequired": {"card": ["zip"]},
        "dependentSchemas": {"tax": {"required": ["card"]}},
        "additionalProperties": False,
    }
    assert admits(schema, {}, {"zip": "1"}, {"card": "c", "zip": "1", "tax": 3}) == [True] * 3
    assert admits(schema, {"card": "c"}, {"tax": 3}, {"zip": "1", "tax": 3}) == [False] * 3


def test_old_dependencies_mean_the_same() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", **OBJECT, "dependencies": {"a": ["b"]}}
    assert admits(schema, {"b": 1}, {"b": 1, "a": 1}, {"a": 1}) == [True, True, False]
    assert admits({**schema, "properties": {"a": {}, "b": {}}}, {"a": 1, "b": 1}, {"a": 1}) == [True, False]


def test_properties_follow_the_order_of_the_schema() -> None:
    schema = {**OBJECT, "properties": {"b": {"type": "null"}, "a": {"type": "null"}}, "required": ["a", "b"]}
    assert admits(schema, {"b": None, "a": None}, {"a": None, "b": None}) == [True, False]


def test_a_base_schema_that_comes_first_writes_its_properties_first() -> None:
    schema = {
        "$defs": {"base": {**OBJECT, "properties": {"id": {"type": "integer"}}, "required": ["id"]}},
        "allOf": [{"$ref": "#/$defs/base"}],
        "properties": {"x": {"type": "null"}},
        "required": ["x"],
    }
    assert admits(schema, {"id": 1, "x": None}, {"x": None, "id": 1}) == [True, False]


def test_known_formats_are_enforced_and_unknown_ones_are_annotations() -> None:
    assert admits({"type": "string", "format": "date"}, "2024-02-29", "2023-02-29", "x") == [True, False, False]
    assert admits({"type": "string", "format": "topic"}, "anything") == [True]


def test_a_listed_name_cannot_be_written_with_escapes() -> None:
    spec = schema_spec({**OBJECT, **A, "patternProperties": {"^p": {"type": "integer"}}})
    assert accepts(spec, '{"a":1}')
    assert not accepts(spec, '{"\\u0061":"x"}')
    assert not accepts(spec, '{"\\u0070q":"x"}')


def test_options_smuggled_into_a_schema_are_dropped() -> None:
    schema = {"x-guidance": {"lenient": True}, "type": "array", "uniqueItems": True, "items": {"type": "integer"}}
    with pytest.raises(Unenforceable, match="`uniqueItems`"):
        schema_spec(schema)


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "not": {"pattern": "a+"}}, "not"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"oneOf": [{"pattern": "a", "type": "string"}, {"pattern": "b", "type": "string"}]}, "oneOf"),
        ({"if": {"pattern": "a", "type": "string"}, "then": False, "type": "string"}, "if"),
        ({**OBJECT, "minProperties": 2}, "minProperties"),
        ({**OBJECT, "propertyNames": {"not": {"pattern": "a"}}}, "propertyNames"),
        ({**OBJECT, "patternProperties": {"^a": {}}, "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"type": "array", "contains": {"type": "null"}, "unevaluatedItems": False}, "unevaluatedItems"),
        ({"$dynamicRef": "#x", "$defs": {"x": {"$dynamicAnchor": "x"}}}, "$dynamicRef"),
    ],
)
def test_what_cannot_be_guaranteed_is_refused_by_name(schema: Any, keyword: str) -> None:
    with pytest.raises(Unenforceable) as caught:
        schema_spec(schema)
    assert caught.value.keyword == keyword
    assert f"`{keyword}`" in caught.value.message


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        {"type": "string", "not": {"pattern": "a+"}},
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {**OBJECT, "minProperties": 2},
        {"if": {"pattern": "a", "type": "string"}, "then": {"minLength": 2}, "type": "string"},
    ],
)
def test_under_the_validated_policy_the_same_schemas_need_validation(schema: Any) -> None:
    assert schema_spec(schema, Policy.VALIDATED).needs_validation


def test_a_guaranteed_schema_needs_no_validation_under_either_policy() -> None:
    assert not schema_spec(CONDITION, Policy.VALIDATED).needs_validation
    assert not schema_spec(CONDITION).needs_validation


def test_branches_distinguished_by_what_they_refuse() -> None:
    closed = [{"type": "object", "properties": {name: {}}, "additionalProperties": False} for name in "ab"]
    assert admits({"oneOf": closed}, {"a": 1}, {"b": 1}, {}) == [True, True, False]


def test_branches_distinguished_by_other_keywords() -> None:
    shapes = [{"properties": {"kind": {"const": kind}, kind: {"type": "null"}}} for kind in ("x", "y")]
    schema = {"type": "object", "properties": {"kind": {"enum": ["x", "y"]}}, "required": ["kind"], "oneOf": shapes}
    assert admits(schema, {"kind": "x", "x": None}, {"kind": "x", "x": 1}) == [True, False]


def test_encoded_strings_count_in_drafts_that_check_them() -> None:
    seven = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "string"}
    with pytest.raises(Unenforceable, match="`contentMediaType`"):
        schema_spec({**seven, "contentMediaType": "application/json"})
    assert admits({**seven, "contentMediaType": "text/plain", "contentEncoding": "quoted"}, "x") == [True]
    assert admits({"type": "string", "contentMediaType": "application/json"}, "x") == [True]


def test_old_dependencies_may_be_schemas() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"a": {}, "b": {}},
        "dependencies": {"a": {"required": ["b"]}},
    }
    assert admits(schema, {"a": 1, "b": 1}, {"b": 1}, {"a": 1}) == [True, True, False]


def test_too_many_combined_cases_are_refused() -> None:
    tangle = {"anyOf": [{"properties": {f"p{i}": {"pattern": "a"} for i in range(8)}} for _ in range(8)]}
    branches = [{"$ref": "#/$defs/tangle", "required": [f"r{i}"]} for i in range(30)]
    with pytest.raises(Unenforceable, match="too many rules"):
        schema_spec({**OBJECT, "oneOf": branches, "$defs": {"tangle": tangle}})


DRAFT_4, DRAFT_7 = ({"$schema": f"http://json-schema.org/draft-0{n}/schema#"} for n in (4, 7))


def test_items_of_an_older_draft_apply_to_the_prefix_of_a_newer_one() -> None:
    schema = {"type": "array", "prefixItems": [{"minimum": 1}], "items": {"type": "integer"}, "maxItems": 2}
    assert admits({**DRAFT_7, **schema}, [1, 2], ["a", 2], [0, 2]) == [True, False, False]
    assert admits({**DRAFT_7, **schema, "prefixItems": [{"type": "string"}]}, ["a", 2], []) == [False, True]


def test_a_constant_of_a_newer_draft_does_not_narrow_what_is_excluded() -> None:
    excluded = {"enum": [1, 2], "const": 1}
    assert admits({**DRAFT_4, "type": "integer", "not": excluded}, 1, 2, 3) == [False, False, True]
    assert admits({**DRAFT_4, **excluded}, 1, 2) == [True, False]


NUMBER_BY_NAME = {"patternProperties": {"^(a|b)$": {"type": "integer"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    "schema",
    [
        {**NUMBER_BY_NAME, "required": ["a", "b"]},
        {**NUMBER_BY_NAME, "properties": {"a": {"minimum": 0}, "b": {}}},
        {"allOf": [NUMBER_BY_NAME, {"properties": {"a": {}, "b": {}}}]},
        {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "propertyNames": {"pattern": "^[ab]$"}},
    ],
)
def test_nothing_follows_the_last_name_that_matches_a_pattern(schema: dict[str, Any]) -> None:
    spec = schema_spec({**OBJECT, **schema})
    assert accepts(spec, '{"a":1,"b":2}')
    matcher = automaton(spec)
    matcher.try_consume_tokens(ALPHABET.spell(b'{"a":1,"b":2') or [])
    assert not matcher.consume_token(ALPHABET.byte_ids[ord(",")])
    assert admits({**OBJECT, **schema}, {"a": 1, "b": "x"}, {"a": 1, "b": 2, "c": 3}) == [False, False]
