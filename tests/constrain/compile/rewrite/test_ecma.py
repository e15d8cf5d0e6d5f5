"""Translation of patterns from ECMA-262 to Rust: the same strings match, or the pattern is refused."""

from __future__ import annotations

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quicksilver.constrain.compile.rewrite.ecma import is_writable, name_pattern, value_pattern
from quicksilver.constrain.compile.rewrite.refusal import Unenforceable
from quicksilver.errors import InvalidGrammar
from tests.constrain.walks import accepts, admits, compact, schema_spec


@pytest.mark.parametrize(
    ("pattern", "taken", "refused"),
    [
        ("^[[a]]$", "a]", "a"),
        ("^[a&&b]$", "&", "c"),
        (r"^\s$", "\u00a0", "\u0085"),
        (r"^\S$", "\u0085", "\ufeff"),
        (r"^[\s]$", "\t", "x"),
        (r"^[^\s]$", "x", "\u2003"),
        (r"^[\S]$", "x", " "),
        ("^.$", "x", "\u2028"),
        (r"^\d{2}$", "12", "\u0663\u0663"),
        (r"^\w+$", "a_1", "\u00e9"),
        (r"^a+?b*?c??$", "aabc", "b"),
        (r"^a{2,3}?$", "aaa", "a"),
        (r"^\x41\u0042$", "AB", "ab"),
        (r"^\u{43}$", "C", "c"),
        ("^[~]$", "~", "a"),
        (r"^\-\.\/$", "-./", "-/"),
        ('^[^"]$', "'", '"'),
        (r"^[^\\]*$", "/", "a\\b"),
        (r"^[a\x00-\x1f]$", "\n", '"'),
        (r"^\p{Lu}\P{L}$", "A1", "a1"),
    ],
)
def test_the_same_strings_match(pattern: str, taken: str, refused: str) -> None:
    assert admits({"type": "string", "pattern": pattern}, taken, refused) == [True, False]


@pytest.mark.parametrize(
    "pattern",
    [
        r"\<a",
        r"\A",
        r"\a",
        "[]",
        "[^]",
        "[+--]",
        "a\x01",
        r"\x01",
        r"[\x01]",
        "[a",
        "\\",
        r"\xzz",
        "a{2}{0}",
        "a+*",
        "a??+",
    ],
)
def test_ambiguous_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(Unenforceable) as caught:
        value_pattern(pattern, "/here")
    assert caught.value.keyword == "pattern"
    assert caught.value.at == "/here"


@pytest.mark.parametrize("pattern", ["(?=a)", "(?<!a)b", r"(a)\1", "a\\b", "("])
def test_what_a_grammar_cannot_match_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(InvalidGrammar, match="`pattern`"):
        schema_spec({"type": "string", "pattern": pattern})


def test_braces_that_are_no_quantifier_are_literal() -> None:
    assert value_pattern("{a}", "") == r"\{a\}"
    assert value_pattern("a{,3}", "") == r"a\{,3\}"


def test_names_keep_the_wide_dot() -> None:
    assert name_pattern("^x.", "") == "^x."
    assert value_pattern("^x.", "") != "^x."


def test_two_patterns_that_become_one_are_refused() -> None:
    with pytest.raises(Unenforceable, match="patternProperties"):
        schema_spec({"type": "object", "patternProperties": {"a*?": {}, "a*": {}}})


def test_control_characters_without_a_short_escape_cannot_be_written() -> None:
    assert is_writable("a\n\t\u00e9")
    assert not is_writable("a\x00")
    assert not is_writable("\x7f")


PIECES = st.sampled_from(
    [
        "a",
        "b",
        "[ab]",
        "[^a]",
        r"\d",
        r"\w",
        r"\s",
        r"\S",
        ".",
        "(a|b)",
        "(?:ab)?",
        "a*",
        "b+",
        "a{1,2}",
        "[[]",
        r"\.",
        "[a-c]",
        r"[\d-]",
        r"[\w.]",
        '[^"]',
        r"[^\\]",
        r"[^/\\\"]+",
        r"[\x00-\x1f]",
        r"[a\x00-\x21]",
        r"[\u0000-\uffff]",
    ]
)
TEXTS = st.text(st.sampled_from('ab01"\\/ .-[]{\n\t\u00e9\u2028\ufeff\u0085\u00a0_'), max_size=4)


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=4).map("".join), st.booleans(), st.lists(TEXTS, min_size=1, max_size=5))
def test_a_pattern_never_admits_more_than_the_validator(body: str, is_anchored: bool, texts: list[str]) -> None:
    schema = {"type": "string", "pattern": f"^{body}$" if is_anchored else body}
    spec = schema_spec(schema)
    for text in texts:
        if accepts(spec, compact(text)):
            assert jsonschema_rs.is_valid(schema, text)
