"""Encoding of sources."""

from __future__ import annotations

import pytest

from quicksilver.constrain.source import (
    FormatKind,
    GrammarSource,
    Layout,
    Policy,
    ResponseFormat,
    Thinking,
    ToolCallFormat,
    ToolChoice,
    ToolSignature,
    ToolTags,
    decode,
    encode,
)

SOURCES: list[GrammarSource] = [
    ResponseFormat(FormatKind.JSON_OBJECT),
    ResponseFormat(FormatKind.JSON_SCHEMA, {"a": [1, None, "x"]}, Policy.VALIDATED, Layout.SPACED, Thinking(3, "<t>")),
    ToolCallFormat(
        (ToolSignature("f", {"type": "object"}, is_strict=True), ToolSignature("g")),
        ToolTags("<a>", 5, "\n", " ", Layout.COMPACT),
        ToolChoice.REQUIRED,
        3,
        ResponseFormat(FormatKind.REGEX, "a"),
        Thinking("</t>"),
    ),
]


@pytest.mark.parametrize("source", SOURCES)
def test_sources_survive_encoding(source: GrammarSource) -> None:
    assert decode(encode(source)) == source


def test_equal_sources_have_equal_bytes() -> None:
    assert encode(SOURCES[1]) == encode(decode(encode(SOURCES[1])))
    assert encode(SOURCES[0]) != encode(SOURCES[1])
