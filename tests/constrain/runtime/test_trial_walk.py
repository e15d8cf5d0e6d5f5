"""The trial run of a grammar over the tokens of a model."""

from __future__ import annotations

import pytest
from llguidance import LLMatcher

from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.compile.trial_compile import LIMITS
from quicksilver.constrain.runtime.matcher import Grammars
from quicksilver.constrain.runtime.tokens import Tokens
from quicksilver.constrain.runtime.trial_walk import trial_walk
from quicksilver.constrain.source import FormatKind, ResponseFormat
from quicksilver.errors import InvalidGrammar
from tests.support.small_tokenizer import VOCAB_SIZE, small_tokenizer


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    tokenizer = small_tokenizer()
    return Tokens(tokenizer.to_json(), tokenizer.eos_ids, VOCAB_SIZE)


def matcher_of(tokens: Tokens, pattern: str) -> LLMatcher:
    spec = compile_response_format(ResponseFormat(FormatKind.REGEX, pattern))
    return LLMatcher(tokens.tokenizer, spec.grammar, log_level=0, limits=LIMITS)


@pytest.mark.parametrize("pattern", ["a", "[a-z]{3,2000}", "(ab|cd)*"])
def test_a_grammar_within_its_limits_passes(tokens: Tokens, pattern: str) -> None:
    matcher = matcher_of(tokens, pattern)
    trial_walk(matcher, tokens)
    assert not matcher.is_error()


def test_a_grammar_that_exceeds_a_limit_only_with_a_whole_vocabulary_is_refused(smollm2: Grammars) -> None:
    grammar = "start: s\ns: s s s | s s | X\nX: /[a-z ]/\n"
    spec = compile_response_format(ResponseFormat(FormatKind.LARK, grammar))
    with pytest.raises(InvalidGrammar, match="`grammar` cannot be enforced"):
        smollm2.constraint(spec)
