"""Lark fragments, and the syntax that grammars of callers must not use."""

from __future__ import annotations

import pytest

from quicksilver.constrain.compile.lark_text import (
    outside_quotes,
    quoted,
    refuse_reserved_syntax,
    tag,
    thinking_rules,
    until,
)
from quicksilver.constrain.compile.rewrite.limits import MAX_GRAMMAR_BYTES
from quicksilver.constrain.source import Thinking
from quicksilver.errors import InvalidGrammar


@pytest.mark.parametrize(
    ("grammar", "named"),
    [
        ("start: <|im_end|>", "<...>"),
        ("start: <[5]>", "<...>"),
        ('start: "a" <think> "b"', "<...>"),
        ("%llguidance {}\nstart: A", "%llguidance"),
        ("start: @other", "@"),
        ("start[max_tokens=5]: /a/", "max_tokens"),
        ('start[stop = "x"]: /a/', "stop"),
        ("start[temperature=2]: /a/", "temperature"),
    ],
)
def test_reserved_syntax_is_refused(grammar: str, named: str) -> None:
    with pytest.raises(InvalidGrammar, match=named):
        refuse_reserved_syntax(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "<|im_end|>"',
        "start: /<b>[^<]*<\\/b>/",
        "// see <here>\nstart: A",
        "# <x> @y\nstart: A",
        "start: '@' \"max_tokens=1\"",
    ],
)
def test_reserved_syntax_inside_quotes_and_comments_is_text(grammar: str) -> None:
    refuse_reserved_syntax(grammar)
    assert "<" not in "".join(outside_quotes(grammar))


def test_an_open_quote_reaches_to_the_end() -> None:
    assert "".join(outside_quotes('a "b <c>')) == "a "


def test_bytes_are_bounded() -> None:
    refuse_reserved_syntax("a" * MAX_GRAMMAR_BYTES)
    with pytest.raises(InvalidGrammar, match="bytes"):
        refuse_reserved_syntax("a" * (MAX_GRAMMAR_BYTES + 1))


def test_tags_are_ids_or_text() -> None:
    assert (tag(7), tag("<x>")) == ("<[7]>", '"<x>"')
    assert quoted('a"b\n') == '"a\\"b\\n"'
    assert until(7, "end") == "end: TEXT <[7]>"
    assert until("</t>", "end") == 'end[lazy]: TEXT "</t>"'
    assert thinking_rules(Thinking(2, 1))[0] == "think: (<[1]> think_end)?"
