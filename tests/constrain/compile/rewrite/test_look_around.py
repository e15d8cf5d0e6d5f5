"""Patterns with look-around: enforced where they are conditions on the same text, otherwise left to validation."""

from __future__ import annotations

import pytest

from quicksilver.constrain.compile.rewrite.look_around import LookAhead, is_unsupported, split_look_ahead
from quicksilver.constrain.source import Policy
from quicksilver.constrain.validate import validate_output
from quicksilver.errors import InvalidGrammar
from tests.constrain.walks import admits, schema_spec

# As pydantic writes a Decimal.
DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"


@pytest.mark.parametrize(
    ("pattern", "found", "rest"),
    [
        ("^a$", [], "^a$"),
        ("^(?=a)b", [LookAhead(True, "^(?:a)")], "^b"),
        ("^(?!^a$)(?=(x|[)])y)b", [LookAhead(False, "^(?:a$)"), LookAhead(True, "^(?:(x|[)])y)")], "^b"),
        (r"^(?=\)a)b", [LookAhead(True, r"^(?:\)a)")], "^b"),
        ("(?=a)b", [], "(?=a)b"),
        ("^(?=a)b|c", [], "^(?=a)b|c"),
        ("^(?=a)(b|[|]|c)", [LookAhead(True, "^(?:a)")], "^(b|[|]|c)"),
        ("^(?=a)?b", [], "^(?=a)?b"),
    ],
)
def test_look_ahead_at_the_start_is_split_off(pattern: str, found: list[LookAhead], rest: str) -> None:
    assert split_look_ahead(pattern) == (found, rest)


@pytest.mark.parametrize("pattern", ["(?=a)b", "a(?!b)", "(?<=a)b", "(?<!a)b", r"(a)\1", r"\bword", r"\\(?=a)"])
def test_what_no_mask_can_check(pattern: str) -> None:
    assert is_unsupported(pattern)
    schema = {"type": "string", "pattern": pattern}
    assert schema_spec(schema, Policy.VALIDATED).needs_validation
    with pytest.raises(InvalidGrammar, match="`pattern` at '/' cannot be enforced: look-around"):
        schema_spec(schema, Policy.GUARANTEED)


@pytest.mark.parametrize("pattern", ["[(?=]", r"[\b]x", r"\(?=", "(?:a)"])
def test_what_only_looks_like_it(pattern: str) -> None:
    assert not is_unsupported(pattern)


@pytest.mark.parametrize(
    ("pattern", "taken", "refused"),
    [
        (r"^(?=.*[A-Z])(?=.*\d).{3,}$", "aB3", "ab3"),
        ("^(?=.{1,3}$)[a-z]+(?:-[a-z]+)*$", "a-b", "a-bc"),
        ("^(?!b)a+$", "aa", "b"),
    ],
)
def test_look_ahead_is_enforced(pattern: str, taken: str, refused: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    assert not schema_spec(schema, Policy.GUARANTEED).needs_validation
    assert admits(schema, taken, refused) == [True, False]


def test_a_refusal_that_a_format_implies_is_enforced() -> None:
    schema = {"type": "string", "format": "date", "pattern": r"^(?!x)\d+-.*$"}
    assert not schema_spec(schema, Policy.GUARANTEED).needs_validation


def test_a_refusal_that_is_not_implied_is_left_to_validation() -> None:
    schema = {"type": "string", "pattern": DECIMAL}
    assert schema_spec(schema, Policy.VALIDATED).needs_validation
    assert validate_output(schema, '"1.5"') is None
    assert validate_output(schema, '"+"') is not None


def test_names_with_look_around_are_left_to_validation() -> None:
    schema = {"type": "object", "propertyNames": {"pattern": "^a(?!b)"}}
    assert schema_spec(schema, Policy.VALIDATED).needs_validation
