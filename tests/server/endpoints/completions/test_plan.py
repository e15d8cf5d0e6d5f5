"""Limits, stop tokens and prompts of completions."""

from __future__ import annotations

from quicksilver.core import DecodeParams
from quicksilver.server.endpoints.completions.plan import (
    MIN_CODE_PROMPT,
    TextPrompt,
    code_limit,
    code_stop_ids,
    make_answer,
    never_empty,
)
from tests.server.conftest import Served
from tests.support.fake_engine import INFO
from tests.support.small_tokenizer import small_tokenizer


def test_a_code_prompt_always_keeps_some_context(served: Served) -> None:
    assert code_limit(10, served.services).max_new_tokens == 10
    assert code_limit(10**6, served.services).max_new_tokens == INFO.context_len - MIN_CODE_PROMPT


def test_code_ends_at_the_tokens_of_another_gap_or_turn() -> None:
    tokenizer = small_tokenizer()
    stop_ids = code_stop_ids(tokenizer.roles, tokenizer.eos_ids)
    assert stop_ids[: len(tokenizer.eos_ids)] == tokenizer.eos_ids
    assert len(set(stop_ids)) == len(stop_ids)
    assert tokenizer.roles.fim_prefix in stop_ids


def test_an_empty_prompt_becomes_the_end_token(served: Served) -> None:
    assert never_empty([], served.services) == small_tokenizer().eos_ids[-1:]
    assert never_empty([5], served.services) == (5,)


def test_a_forced_beginning_is_a_constraint() -> None:
    free, forced = (make_answer(TextPrompt((1,), forced=text), DecodeParams(), "t").request for text in ("", "def"))
    assert free.constraint is None
    assert forced.constraint is not None
    assert (forced.constraint.lead, forced.tenant) == ("def", "t")
