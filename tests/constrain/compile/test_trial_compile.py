"""The trial compile: refusals name a keyword, and a grammar without any text is refused."""

from __future__ import annotations

import pytest

from quicksilver.constrain.alphabet import plain_alphabet
from quicksilver.constrain.compile.trial_compile import refusal_of, trial_compile
from quicksilver.errors import InvalidGrammar


@pytest.mark.parametrize(
    ("error", "keyword"),
    [
        ("lookarounds not supported yet; End in regex /a$b/", "pattern"),
        ("circular references with sibling keys are not supported: x", "$ref"),
        ("Schema intersection stack level exceeded", "allOf"),
        ("Unsatisfiable schema: required property 'id' is unsatisfiable", "required"),
        ("patternProperty regexes /a/ and /b/ are not disjoint", "patternProperties"),
        ("something new", "schema"),
    ],
)
def test_a_refusal_names_a_keyword(error: str, keyword: str) -> None:
    assert refusal_of(error).message.startswith(f"`{keyword}`")


@pytest.mark.parametrize(("pattern", "reason"), [("(?=a)b", "look-around"), ("a(b", "unclosed group")])
def test_a_refused_pattern_has_the_reason_of_the_regex_parser(pattern: str, reason: str) -> None:
    with pytest.raises(InvalidGrammar, match=f"`pattern` cannot be enforced: {reason}"):
        trial_compile([{"lark_grammar": f"start: /{pattern}/"}], "pattern")


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("start: missing", "at 1(8): unknown name"),
        ("start: anyOf", "at 1(8): unknown name"),
        ("nonsense", "1(9): Expected token"),
        ('other: "a"', "no start rule found"),
        ("start: /[/", "unclosed character class"),
        ('start: %json {"type": "nonsense"}', "at 1(8): failed to compile JSON schema"),
    ],
)
def test_an_error_in_lark_text_names_the_grammar(grammar: str, reason: str) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        trial_compile([{"lark_grammar": grammar}], "grammar")
    assert caught.value.message.startswith(f"`grammar` cannot be enforced: {reason}")


@pytest.mark.parametrize("grammar", ["start: start", "start: a\na: b\nb: a"])
def test_a_rule_that_only_refers_to_itself_is_refused(grammar: str) -> None:
    with pytest.raises(InvalidGrammar, match="only refers back to itself"):
        trial_compile([{"lark_grammar": grammar}], "grammar")


def test_a_grammar_with_a_long_shortest_completion_is_accepted() -> None:
    assert trial_compile([{"lark_grammar": "start: /[a-z]{5000}/"}], "grammar").grammar


def test_special_tokens_are_named_by_id() -> None:
    spec = trial_compile([{"lark_grammar": 'start: <[3]> "a" <[7]>'}], "grammar", special_ids=[3, 7])
    assert "<[7]>" in spec.grammar
    alphabet = plain_alphabet([3, 7])
    assert set(alphabet.byte_ids.values()).isdisjoint({3, 7})
    assert alphabet.spell(b"ab") == [8 + 97, 8 + 98]
