"""JSON without a grammar: parsing and validation."""

from __future__ import annotations

import pytest

from quicksilver.evals.task import Answer
from quicksilver.evals.tasks import (
    json_schema,
)

SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("text", "parses", "valid"), [('{"a": 1}', 1.0, 1.0), ('{"a": "x"}', 1.0, 0.0), ('Here: {"a": 1}', 0.0, 0.0)]
)
def test_json_is_parsed_and_held_against_its_schema(text: str, parses: float, valid: float) -> None:
    assert json_schema.score(json_schema.SchemaItem(SCHEMA), Answer(text)) == {"parses": parses, "valid": valid}


def test_without_a_validator_validity_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jsonschema_rs", None)
    item = json_schema.SchemaItem(SCHEMA)
    assert [json_schema.score(item, Answer(text)) for text in ('{"a": 1}', "{")] == [{"parses": 1.0}, {"parses": 0.0}]
