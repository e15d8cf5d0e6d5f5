from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quicksilver.text.tool_calls import CallParser

_NAMES = frozenset({"get", "set_x"})
_CLOSE = "</tool_call>"


def parse(text: str, close_tag: str = "") -> tuple[str, str, str, str]:
    """Name and arguments of a call, the text that is not part of it, and what followed its closing tag."""
    parser = CallParser(_NAMES, close_tag)
    after = parser.push(text)
    name, arguments = parser.take()
    rest = parser.close()
    late_name, late_arguments = parser.take()
    return name + late_name, arguments + late_arguments, rest, after


def test_name_comes_before_the_arguments_are_complete() -> None:
    parser = CallParser(_NAMES)
    parser.push(' {"name": "get", "arguments": {"ci')
    assert parser.take() == ("get", '{"ci')
    parser.push('ty": "x"}')
    assert parser.take() == ("", 'ty": "x"}')
    parser.push("}\n")
    assert (parser.close(), parser.name) == ("", "get")


@pytest.mark.parametrize(
    "text",
    [
        '{"arguments": {"a": 1}, "name": "get"}',
        '{"name": "get", "arguments": "{\\"a\\": 1}"}',
        '{"name": "get", "id": 7, "arguments": {"a": 1}}',
        '{"name": "get", "parameters": {"a": 1}}',
        ' {\n"name" : "get" ,\n"arguments" :  {"a": 1}\n} \n',
        '{"name": "\\u0067et", "arguments": {"a": 1}}',
    ],
)
def test_other_spellings_of_a_call_are_read_too(text: str) -> None:
    assert parse(text) == ("get", '{"a": 1}', "", "")


@pytest.mark.parametrize("text", ['{"name": ["get"]}', '{"name": {}, "arguments": {}}', "[" * 200_000])
def test_a_name_that_is_no_string_is_no_call(text: str) -> None:
    parser = CallParser(frozenset(_NAMES))
    parser.push(text)
    assert (parser.close(), parser.name) == (text, "")


@pytest.mark.parametrize("arguments", ['{"a": "\\ud83d"}', '"{\\"a\\": \\"\\ud83d\\"}"'])
def test_half_of_a_surrogate_pair_stays_an_escape(arguments: str) -> None:
    name, written, rest, _ = parse(f'{{"arguments": {arguments}, "name": "get"}}')
    assert (name, written, rest) == ("get", '{"a": "\\ud83d"}', "")
    assert json.loads(written.encode()) == {"a": "\ud83d"}


def test_call_without_arguments_has_empty_ones() -> None:
    assert parse('{"name": "get"}') == ("get", "{}", "", "")


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "",
        '{"name": "unknown", "arguments": {}}',
        '{"name": "unknown"}',
        '{"name": 3, "arguments": {}}',
        '{"name": ["get"]}',
        '["get"]',
        '{"name": "get", "arguments": ',
        '{"name": "g\\x", "arguments": {}}',
        '{"name": {"get": 1}}',
        "{" * 5000,
        "[" * 200_000,
    ],
)
def test_text_that_is_no_call_comes_back_whole(text: str) -> None:
    assert parse(text) == ("", "", text, "")


def test_text_after_the_arguments_is_returned() -> None:
    assert parse('{"name": "get", "arguments": {}} and more') == ("get", "{}", "} and more", "")


def test_arguments_cut_short_stay_arguments() -> None:
    assert parse('{"name": "get", "arguments": {"a": [1, "}') == ("get", '{"a": [1, "}', "", "")


def test_closing_tag_inside_a_string_does_not_close() -> None:
    arguments = json.dumps({"text": f'{_CLOSE} "quoted" \\ {{'})
    text = f'{{"name": "get", "arguments": {arguments}}}{_CLOSE}after'
    assert parse(text, _CLOSE) == ("get", arguments, "", "after")


def test_closing_tag_ends_what_is_no_call() -> None:
    assert parse(f"nonsense{_CLOSE}after", _CLOSE) == ("", "", "nonsense", "after")


def containers(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)


_JSON = st.recursive(st.none() | st.integers() | st.text(max_size=6), containers, max_leaves=5)


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=4), _JSON, max_size=3), st.booleans())
def test_any_arguments_come_through_as_written(arguments: dict[str, object], spaced: bool) -> None:
    written = json.dumps(arguments, ensure_ascii=spaced, indent=2 if spaced else None)
    text = f'{{"name": "set_x", "arguments": {written}}}{_CLOSE}'
    assert parse(text, _CLOSE) == ("set_x", written, "", "")


@pytest.mark.parametrize("close_tag", ["", "</tool_call>"])
@pytest.mark.parametrize("padding", ["", "\n"])
@pytest.mark.parametrize("text", ["*** Begin\n+a\n*** End", "", "\n", "a < b", '{"x": 1}', "</tool", "ends\n"])
def test_a_text_tool_takes_plain_text_however_it_is_cut(text: str, padding: str, close_tag: str) -> None:
    whole = f'{{"name": "patch"}}\n{text}{padding}{close_tag}'
    for size in (1, 3, len(whole)):
        parser = CallParser({"patch", "look"}, close_tag, {"patch"}, padding)
        name, read = "", ""
        for at in range(0, len(whole), size):
            assert parser.push(whole[at : at + size]) == ""
            new_name, piece = parser.take()
            name, read = name + new_name, read + piece
        assert parser.is_closed is bool(close_tag)
        assert parser.close() == ""
        assert (name, read + parser.take()[1]) == ("patch", text)


def test_a_tool_with_arguments_is_no_text_tool() -> None:
    parser = CallParser({"patch", "look"}, "", {"patch"})
    parser.push('{"name": "look"}\nhello')
    assert parser.take() == ("", "")
    assert parser.close() == '{"name": "look"}\nhello'
