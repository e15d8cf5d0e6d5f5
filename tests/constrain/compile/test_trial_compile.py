"""The last step of compilation: errors get a keyword, and a grammar without any text is refused."""

from __future__ import annotations

import pytest

from quicksilver.constrain.alphabet import plain_alphabet
from quicksilver.constrain.compile.trial_compile import prove, refusal
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
def test_a_complaint_names_a_keyword(error: str, keyword: str) -> None:
    assert refusal(error).message.startswith(f"`{keyword}`")


def test_a_grammar_that_nothing_satisfies_is_refused() -> None:
    with pytest.raises(InvalidGrammar):
        prove([{"lark_grammar": "start: start"}])


def test_a_grammar_with_a_long_way_out_is_taken() -> None:
    assert prove([{"lark_grammar": "start: /[a-z]{5000}/"}]).grammar


def test_special_tokens_are_known_by_id() -> None:
    spec = prove([{"lark_grammar": 'start: <[3]> "a" <[7]>'}], special_ids=[3, 7])
    assert "<[7]>" in spec.grammar
    alphabet = plain_alphabet([3, 7])
    assert set(alphabet.byte_ids.values()).isdisjoint({3, 7})
    assert alphabet.spell(b"ab") == [8 + 97, 8 + 98]
