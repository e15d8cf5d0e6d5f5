"""Validation of finished output, and the choice of the draft."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.constrain.compile.rewrite.vocabulary import Draft
from quicksilver.constrain.validate import pick_draft, validate_output
from quicksilver.errors import InvalidGrammar

PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


def test_a_valid_text_has_no_fault() -> None:
    assert validate_output(PERSON, '{"age": 3}') is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"age":', "not JSON"),
        ("", "not JSON"),
        ('{"age": NaN}', "not JSON"),
        ('{"age": 3} x', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "age"),
        ('{"age": "x"}', "/age"),
    ],
)
def test_an_invalid_text_has_a_fault(text: str, reason: str) -> None:
    assert reason in (validate_output(PERSON, text) or "")


def test_formats_are_annotations() -> None:
    assert validate_output({"type": "string", "format": "date"}, '"someday"') is None


def test_backtracking_is_bounded() -> None:
    fault = validate_output({"type": "string", "pattern": "^(?:(?=a)a+)+b$"}, '"' + "a" * 100_000 + '"')
    assert "backtracking" in (fault or "")


def test_numbers_that_overflow_are_not_numbers() -> None:
    assert validate_output({"type": "number"}, "1e999") is not None


@pytest.mark.parametrize(
    ("schema", "draft"),
    [
        ({}, Draft.Y2020),
        (True, Draft.Y2020),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, Draft.SEVEN),
        ({"$schema": "http://json-schema.org/draft-04/schema"}, Draft.FOUR),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema"}, Draft.Y2019),
        ({"$schema": "https://example.com/my-dialect"}, Draft.Y2020),
        ({"items": [{}]}, Draft.SEVEN),
        ({"minimum": 1, "exclusiveMinimum": True}, Draft.FOUR),
    ],
)
def test_drafts(schema: Any, draft: Draft) -> None:
    assert pick_draft(schema) is draft


def test_a_schema_malformed_under_every_draft_is_refused_by_name() -> None:
    with pytest.raises(InvalidGrammar, match="`minLength` is malformed"):
        pick_draft({"properties": {"a": {"minLength": -1}}})


def test_nothing_is_fetched() -> None:
    with pytest.raises(InvalidGrammar, match=r"`\$ref` cannot be followed"):
        pick_draft({"$ref": "http://127.0.0.1:9/schema.json"})


def test_a_declared_draft_is_used() -> None:
    with pytest.raises(InvalidGrammar, match="`items`"):
        pick_draft({"$schema": "https://json-schema.org/draft/2020-12/schema", "items": [{}]})


def test_a_schema_that_the_validator_cannot_read_is_refused() -> None:
    with pytest.raises(InvalidGrammar, match="cannot be read"):
        pick_draft({"a": {1: 2}})  # type: ignore[dict-item]
