"""Tools: text and calls as the choice allows, valid arguments, tags as text or as special tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from quicksilver.constrain.alphabet import plain_alphabet
from quicksilver.constrain.compile.rewrite.refusal import Unenforceable
from quicksilver.constrain.compile.tools import MAX_CALLS, MAX_TOOLS, compile_tools
from quicksilver.constrain.source import (
    FormatKind,
    Layout,
    ResponseFormat,
    Thinking,
    ToolCallFormat,
    ToolChoice,
    ToolSignature,
    ToolTags,
)
from quicksilver.errors import InvalidGrammar
from tests.constrain.walks import automaton

OPEN, CLOSE, THINK_CLOSE = 300, 301, 302
ALPHABET = plain_alphabet([OPEN, CLOSE, THINK_CLOSE])
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = (ToolSignature("weather", CITY, is_strict=True), ToolSignature("now"))
SPECIAL = ToolTags(OPEN, CLOSE)
TEXT = ToolTags("<tool_call>", "</tool_call>", padding="\n", between="\n")
WEATHER = '{"name": "weather", "arguments": {"city": "Oslo"}}'
NOW = '{"name": "now", "arguments": {}}'


def taken(plan: ToolCallFormat, *parts: str | int) -> bool:
    """Whether the grammar takes this answer of text and special tokens, whole."""
    matcher = automaton(compile_tools(plan), ALPHABET)
    ids = [i for part in parts for i in ([part] if isinstance(part, int) else ALPHABET.spell(part.encode()) or [])]
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def call(body: str, tags: ToolTags) -> list[str | int]:
    if isinstance(tags.open, int):
        return [tags.open, body, tags.close]
    return [f"{tags.open}{tags.padding}{body}{tags.padding}{tags.close}"]


@pytest.mark.parametrize("tags", [SPECIAL, TEXT])
def test_auto_is_text_or_calls_or_both(tags: ToolTags) -> None:
    plan = ToolCallFormat(TOOLS, tags)
    assert taken(plan, "just text")
    assert taken(plan, "")
    assert taken(plan, *call(WEATHER, tags))
    assert taken(plan, "Let me look. ", *call(WEATHER, tags), tags.between, *call(NOW, tags))


@pytest.mark.parametrize("tags", [SPECIAL, TEXT])
@pytest.mark.parametrize(
    "body",
    [
        '{"name": "weather", "arguments": {"city": 3}}',
        '{"name": "weather", "arguments": {}}',
        '{"name": "other", "arguments": {}}',
        '{"name": "now", "arguments": {"city": "Oslo"}}',
        '{"arguments": {}, "name": "now"}',
        "no json",
    ],
)
def test_a_call_that_matches_no_tool_is_not_allowed(tags: ToolTags, body: str) -> None:
    assert not taken(ToolCallFormat(TOOLS, tags), *call(body, tags))
    assert not taken(ToolCallFormat(TOOLS, tags), "text ", *call(body, tags))


@pytest.mark.parametrize("tags", [SPECIAL, TEXT])
def test_no_text_follows_a_call(tags: ToolTags) -> None:
    assert not taken(ToolCallFormat(TOOLS, tags), *call(NOW, tags), "done")


@pytest.mark.parametrize("tags", [SPECIAL, TEXT])
def test_required_is_one_or_more_calls_and_nothing_else(tags: ToolTags) -> None:
    plan = ToolCallFormat(TOOLS, tags, ToolChoice.REQUIRED)
    assert taken(plan, *call(NOW, tags))
    assert not taken(plan, "")
    assert not taken(plan, "text")
    assert not taken(plan, "text", *call(NOW, tags))


@pytest.mark.parametrize("tags", [SPECIAL, TEXT])
def test_named_is_exactly_one_call(tags: ToolTags) -> None:
    plan = ToolCallFormat(TOOLS[:1], tags, ToolChoice.NAMED)
    assert taken(plan, *call(WEATHER, tags))
    assert not taken(plan, *call(WEATHER, tags), tags.between, *call(WEATHER, tags))
    assert not taken(plan, *call(NOW, tags))


@pytest.mark.parametrize("tags", [SPECIAL, TEXT])
def test_none_is_text_that_opens_no_call(tags: ToolTags) -> None:
    plan = ToolCallFormat(TOOLS, tags, ToolChoice.NONE)
    assert taken(plan, "text with <tags> and {braces}")
    assert not taken(plan, "text", *call(NOW, tags))
    assert not taken(plan, *call(NOW, tags))


@pytest.mark.parametrize("tags", [SPECIAL, TEXT])
def test_the_number_of_calls_is_bounded(tags: ToolTags) -> None:
    plan = ToolCallFormat(TOOLS, tags, max_calls=2)
    two = [*call(NOW, tags), tags.between, *call(NOW, tags)]
    assert taken(plan, *two)
    assert not taken(plan, *two, tags.between, *call(NOW, tags))
    assert not taken(replace(plan, max_calls=1), *two)


def test_thinking_before_calls() -> None:
    plan = ToolCallFormat(TOOLS, SPECIAL, ToolChoice.REQUIRED, thinking=Thinking(THINK_CLOSE))
    assert taken(plan, "which tool?", THINK_CLOSE, *call(NOW, SPECIAL))
    assert not taken(plan, *call(NOW, SPECIAL))


def test_text_beside_calls_may_have_a_format() -> None:
    plan = ToolCallFormat(TOOLS, SPECIAL, answer=ResponseFormat(FormatKind.JSON_OBJECT))
    assert taken(plan, '{"x":1}')
    assert taken(plan, *call(NOW, SPECIAL))
    assert not taken(plan, "text")


def test_compact_calls() -> None:
    tags = replace(SPECIAL, layout=Layout.COMPACT)
    assert taken(ToolCallFormat(TOOLS, tags), *call('{"name":"weather","arguments":{"city":"Oslo"}}', tags))
    assert not taken(ToolCallFormat(TOOLS, tags), *call(WEATHER, tags))


def test_tools_whose_names_begin_alike() -> None:
    plan = ToolCallFormat((ToolSignature("get"), ToolSignature("get_all"), ToolSignature("get_all_now")), SPECIAL)
    for name in ("get", "get_all", "get_all_now"):
        assert taken(plan, *call(json.dumps({"name": name, "arguments": {}}), SPECIAL))
    assert not taken(plan, *call(json.dumps({"name": "get_", "arguments": {}}), SPECIAL))


LOOSE = {"type": "object", "properties": {"ids": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}}}


def test_only_a_strict_tool_is_refused_for_what_cannot_be_guaranteed() -> None:
    spec = compile_tools(ToolCallFormat((ToolSignature("f", LOOSE),), SPECIAL))
    assert spec.needs_validation
    with pytest.raises(Unenforceable, match="`uniqueItems`"):
        compile_tools(ToolCallFormat((ToolSignature("f", LOOSE, is_strict=True),), SPECIAL))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tools": (TOOLS[0], TOOLS[0])}, "same name"),
        ({"tools": ()}, "no `tools`"),
        ({"choice": ToolChoice.NAMED}, "names one tool"),
        ({"max_calls": 0}, "calls are allowed"),
        ({"max_calls": MAX_CALLS + 1}, "calls are allowed"),
        ({"tools": tuple(ToolSignature(f"t{i}") for i in range(MAX_TOOLS + 1))}, "`tools`"),
    ],
)
def test_inconsistent_tools_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGrammar, match=message):
        compile_tools(replace(ToolCallFormat(TOOLS, SPECIAL), **change))


def test_the_largest_number_of_tools_is_allowed() -> None:
    plan = ToolCallFormat(tuple(ToolSignature(f"t{i}") for i in range(MAX_TOOLS)), SPECIAL, max_calls=MAX_CALLS)
    assert taken(plan, *call('{"name": "t77", "arguments": {}}', SPECIAL))


PATCH_GRAMMAR = ResponseFormat(FormatKind.LARK, 'start: "*** Begin\\n" /[a-z]+/ "\\n*** End"')
DIGITS = ResponseFormat(FormatKind.REGEX, "[0-9]+")
FREE = ResponseFormat(FormatKind.LARK)


@pytest.mark.parametrize("tags", [SPECIAL, TEXT])
def test_a_text_tool_takes_text_that_follows_its_grammar(tags: ToolTags) -> None:
    tools = (ToolSignature("patch", text=PATCH_GRAMMAR), ToolSignature("count", text=DIGITS), *TOOLS)
    plan = ToolCallFormat(tools, tags)
    assert taken(plan, *call('{"name": "patch"}\n*** Begin\nabc\n*** End', tags))
    assert taken(plan, *call('{"name": "count"}\n42', tags))
    assert taken(plan, *call(WEATHER, tags))
    assert not taken(plan, *call('{"name": "patch"}\nanything', tags))
    assert not taken(plan, *call('{"name": "count"}\nforty', tags))
    assert not taken(plan, *call('{"name": "patch", "arguments": {"input": "x"}}', tags))


@pytest.mark.parametrize("tags", [SPECIAL, TEXT])
def test_a_text_tool_without_a_grammar_takes_any_text(tags: ToolTags) -> None:
    plan = ToolCallFormat((ToolSignature("note", text=FREE),), tags, ToolChoice.NAMED)
    assert taken(plan, *call('{"name": "note"}\nany { text \n\n</tool', tags))
    assert not taken(plan, "no call")


@pytest.mark.parametrize(
    ("kind", "value", "named"), [(FormatKind.LARK, "start: missing", "grammar"), (FormatKind.REGEX, "(a", "pattern")]
)
def test_a_malformed_format_of_the_text_beside_tools_is_named(kind: FormatKind, value: str, named: str) -> None:
    with pytest.raises(InvalidGrammar, match=f"^`{named}` cannot be enforced"):
        compile_tools(ToolCallFormat(TOOLS, SPECIAL, answer=ResponseFormat(kind, value)))


def test_a_malformed_grammar_of_a_tool_is_named() -> None:
    tool = ToolSignature("patch", text=ResponseFormat(FormatKind.LARK, "start: missing"))
    with pytest.raises(InvalidGrammar, match=r"^`grammar` cannot be enforced"):
        compile_tools(ToolCallFormat((tool, *TOOLS), TEXT))
