"""References by pointer, anchor and id, within one document."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.constrain.compile.rewrite.references import Registry
from quicksilver.constrain.compile.rewrite.refusal import Unenforceable
from quicksilver.constrain.compile.rewrite.vocabulary import Draft
from quicksilver.errors import InvalidGrammar
from tests.constrain.walks import admits, schema_spec

STRING = {"type": "string"}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": STRING}},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": STRING}},
        {"$ref": "#/$defs/a%25b", "$defs": {"a%b": STRING}},
        {"$ref": "#/prefixItems/0", "prefixItems": [STRING], "type": "string"},
        {"$ref": "#name", "$defs": {"a": {"$anchor": "name", **STRING}}},
        {"$ref": "other", "$id": "http://x.test/root", "$defs": {"a": {"$id": "other", **STRING}}},
        {"$ref": "urn:x:y#/$defs/b", "$defs": {"a": {"$id": "urn:x:y", "$defs": {"b": STRING}}}},
        {"$ref": "#/components/s", "components": {"s": STRING}},
        {
            "$recursiveRef": "#/$defs/a",
            "$defs": {"a": STRING},
            "$schema": "https://json-schema.org/draft/2019-09/schema",
        },
    ],
)
def test_a_reference_resolves_to_its_schema(schema: dict[str, Any]) -> None:
    assert admits(schema, "text", 1) == [True, False]


def test_recursion() -> None:
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}
    closed = {**tree, "additionalProperties": False}
    assert admits(closed, {"kids": [{}, {"kids": []}]}, {"kids": [1]}) == [True, False]


def test_a_recursive_reference_proves_nothing_in_other_drafts() -> None:
    """A validator of draft 2020-12 ignores it, so the second branch matches text too."""
    branches = [{"type": "string"}, {"$recursiveRef": "#"}]
    schema = {"type": "object", "properties": {"a": {"oneOf": branches}}, "additionalProperties": False}
    assert admits(schema, {"a": {}}, {"a": "text"}) == [True, False]
    declared = {"$schema": "https://json-schema.org/draft/2019-09/schema", **schema}
    assert admits(declared, {"a": {}}, {"a": "text"}, {"a": 1}) == [True, True, False]


def test_two_references_in_one_schema_are_refused_by_name() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2019-09/schema",
        "$defs": {"a": {"minLength": 1}, "b": {"maxLength": 2}},
        "properties": {"a": {"$ref": "#/$defs/a", "$recursiveRef": "#/$defs/b"}},
    }
    with pytest.raises(InvalidGrammar, match=r"`\$recursiveRef` at '/properties/a'"):
        schema_spec(schema)


@pytest.mark.parametrize(
    "target", ["http://example.com/s.json", "other.json", "#/$defs/none", "#nowhere", "file:///etc/x"]
)
def test_a_reference_without_target_is_refused_by_name(target: str) -> None:
    with pytest.raises(InvalidGrammar, match=r"`\$ref`"):
        schema_spec({"$ref": target})


@pytest.mark.parametrize("reference", [3, "#/a/b", "#/list/7", "#/list/x"])
def test_the_registry_names_the_place_of_a_bad_reference(reference: Any) -> None:
    registry = Registry({"a": 1, "list": []}, Draft.Y2020)
    with pytest.raises(Unenforceable) as caught:
        registry.resolve(registry.root, reference)
    assert caught.value.keyword == "$ref"


def test_an_id_beside_a_reference_sets_no_base_in_old_drafts() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "http://x.test/base/",
        "definitions": {
            "foo": {"$id": "http://x.test/foo.json", "type": "string"},
            "base_foo": {"$id": "foo.json", "type": "number"},
        },
        "allOf": [{"$id": "http://x.test/", "$ref": "foo.json"}],
    }
    assert admits(schema, 1, "a") == [True, False]


def test_a_reference_to_itself_alone_is_refused() -> None:
    with pytest.raises(InvalidGrammar, match=r"`\$ref`"):
        schema_spec({"$ref": "#"})


def test_an_id_that_is_a_fragment_is_an_anchor() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"a": {"$id": "#name", "type": "string"}},
        "allOf": [{"$ref": "#name"}],
    }
    assert admits(schema, "x", 1) == [True, False]


def test_the_registry_refuses_references_to_other_documents() -> None:
    registry = Registry({}, Draft.Y2020)
    with pytest.raises(Unenforceable, match="another document"):
        registry.resolve(registry.root, "http://example.com/s.json")
