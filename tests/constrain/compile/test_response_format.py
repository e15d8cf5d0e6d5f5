"""Every format of an answer, its layout, thinking before it, and refusals that name the keyword."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.compile.rewrite.limits import MAX_CHOICES, MAX_GRAMMAR_BYTES, MAX_REGEX_CHARS
from quicksilver.constrain.source import FormatKind, Layout, Policy, ResponseFormat, Thinking
from quicksilver.core import ConstraintSpec
from quicksilver.errors import InvalidGrammar
from tests.constrain.walks import accepts


def spec(kind: FormatKind, value: Any = None, **options: Any) -> ConstraintSpec:
    return compile_response_format(ResponseFormat(kind, value, **options))


def test_any_json_object() -> None:
    anything = spec(FormatKind.JSON_OBJECT)
    assert accepts(anything, '{"a":[1,{"b":null}],"c":"d"}')
    assert not accepts(anything, "[]")
    assert not accepts(anything, '{"a": 1}')


def test_json_can_have_the_spacing_of_json_dumps() -> None:
    spaced = spec(FormatKind.JSON_SCHEMA, {"type": "object"}, layout=Layout.SPACED)
    assert accepts(spaced, '{"a": [1, 2], "b": {}}')
    assert not accepts(spaced, '{"a":1}')


def test_boolean_schemas() -> None:
    assert accepts(spec(FormatKind.JSON_SCHEMA, True), '[1,"x"]')
    with pytest.raises(InvalidGrammar):
        spec(FormatKind.JSON_SCHEMA, False)


def test_a_regular_expression_matches_the_whole_answer() -> None:
    date = spec(FormatKind.REGEX, r"[0-9]{4}/[0-9]{2}")
    assert accepts(date, "2024/05")
    assert not accepts(date, "x2024/05")


def test_a_lark_grammar() -> None:
    sums = spec(FormatKind.LARK, 'start: NUM ("+" NUM)*\nNUM: /[0-9]+/')
    assert accepts(sums, "1+22+3")
    assert not accepts(sums, "1+")


def test_a_choice_of_labels() -> None:
    labels = spec(FormatKind.CHOICE, ["yes", 'no "quotes"', "maybe\nso", "yes"])
    assert [accepts(labels, text) for text in ("yes", 'no "quotes"', "maybe\nso", "y")] == [True, True, True, False]


@pytest.mark.parametrize("kind", [FormatKind.JSON_OBJECT, FormatKind.LARK, FormatKind.REGEX, FormatKind.CHOICE])
@pytest.mark.parametrize("thinking", [Thinking("</think>"), Thinking("</think>", "<think>")])
def test_thinking_comes_first(kind: FormatKind, thinking: Thinking) -> None:
    value = {FormatKind.LARK: 'start: "{}"', FormatKind.REGEX: r"\{\}", FormatKind.CHOICE: ["{}"]}.get(kind)
    thoughtful = spec(kind, value, thinking=thinking)
    opened = "" if thinking.open is None else "<think>"
    assert accepts(thoughtful, opened + "let me {see}</think>{}")
    assert not accepts(thoughtful, opened + "let me see{}")
    assert not accepts(thoughtful, opened + "a</think>b</think>{}")
    assert accepts(thoughtful, "{}") is (thinking.open is not None)


def test_openai_strict_schemas_compile() -> None:
    step = {
        "type": "object",
        "properties": {"explanation": {"type": "string"}, "output": {"type": "string"}},
        "required": ["explanation", "output"],
        "additionalProperties": False,
    }
    schema = {
        "type": "object",
        "properties": {
            "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}},
            "parent": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
            "unit": {"type": ["string", "null"], "enum": ["c", "f", None]},
        },
        "$defs": {"step": step},
        "required": ["steps", "parent", "unit"],
        "additionalProperties": False,
    }
    strict = spec(FormatKind.JSON_SCHEMA, schema)
    assert not strict.needs_validation
    assert accepts(strict, '{"steps":[{"explanation":"","output":"x"}],"parent":null,"unit":"c"}')


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "strin"}, "type"),
        ({"required": True}, "required"),
        ({"minimum": "3"}, "minimum"),
        ({"properties": {"a": {"enum": 3}}}, "enum"),
        ({"pattern": "("}, "pattern"),
        ({"$ref": "https://example.com/s"}, "$ref"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, ""),
        ({"type": "object", "required": ["a"], "properties": {"a": False}}, "required"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "minItems"),
        ({"type": "object", "patternProperties": {"a": {}, "b": {}}}, "patternProperties"),
        ({"multipleOf": 123456789012, "type": "integer"}, "multipleOf"),
    ],
)
def test_a_bad_schema_is_refused_with_the_keyword(schema: Any, keyword: str) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        spec(FormatKind.JSON_SCHEMA, schema)
    assert f"`{keyword}" in caught.value.message
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (FormatKind.REGEX, ""),
        (FormatKind.REGEX, None),
        (FormatKind.REGEX, "(?=a)b"),
        (FormatKind.LARK, ""),
        (FormatKind.LARK, "start: undefined"),
        (FormatKind.CHOICE, []),
        (FormatKind.CHOICE, ["a", ""]),
        (FormatKind.CHOICE, ["a", 3]),
        (FormatKind.CHOICE, "ab"),
        (FormatKind.JSON_SCHEMA, 3),
        (FormatKind.JSON_SCHEMA, None),
        (FormatKind.JSON_SCHEMA, "{}"),
    ],
)
def test_values_of_the_wrong_type_are_refused(kind: FormatKind, value: Any) -> None:
    with pytest.raises(InvalidGrammar):
        spec(kind, value)


def test_limits_of_regex_lark_and_labels() -> None:
    spec(FormatKind.REGEX, "a" * MAX_REGEX_CHARS)
    spec(FormatKind.CHOICE, [f"{i}" for i in range(MAX_CHOICES)])
    with pytest.raises(InvalidGrammar, match="`pattern`"):
        spec(FormatKind.REGEX, "a" * (MAX_REGEX_CHARS + 1))
    with pytest.raises(InvalidGrammar, match="`choice`"):
        spec(FormatKind.CHOICE, [f"{i}" for i in range(MAX_CHOICES + 1)])
    with pytest.raises(InvalidGrammar, match="bytes"):
        spec(FormatKind.CHOICE, ["a" * MAX_GRAMMAR_BYTES])
    with pytest.raises(InvalidGrammar, match=r"^There are too many bytes in the `grammar`"):
        spec(FormatKind.LARK, "a" * (MAX_GRAMMAR_BYTES + 1))


def test_the_policy_reaches_the_schema() -> None:
    loose = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    assert spec(FormatKind.JSON_SCHEMA, loose, policy=Policy.VALIDATED).needs_validation
    with pytest.raises(InvalidGrammar, match="`uniqueItems`"):
        spec(FormatKind.JSON_SCHEMA, loose)
