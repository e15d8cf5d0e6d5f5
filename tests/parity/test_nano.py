"""nano as shipped: it answers the sanity questions, and drafting changes only the number of forwards."""

from __future__ import annotations

import pytest

from quicksilver.backends.torch import backend as runner
from quicksilver.engine.load import LoadConfig
from quicksilver.evals.tasks.sanity import QUESTIONS
from quicksilver.llm import LLM, Answer
from quicksilver.text.chat import Message
from tests.support.tiny import decode_params
from tests.support.weights import nano

pytestmark = [pytest.mark.parity, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def llm() -> LLM:
    nano()
    return LLM("nano", LoadConfig(device="cpu"))


def answer(llm: LLM, question: str, decoder: str) -> Answer:
    return llm.chat([Message("user", question)], decode_params(decoder, canvas_len=16, max_new_tokens=48))


# Two may be wrong on another machine's arithmetic; the shipped adapters answered all ten.
NUM_RIGHT = 8


def test_the_ten_sanity_questions_are_answered_no_worse_than_when_shipped(llm: LLM) -> None:
    answers = {question: answer(llm, question.text, "verify").text for question in QUESTIONS}
    wrong = {question.text: text for question, text in answers.items() if not question.is_right(text)}
    assert len(QUESTIONS) == 10
    assert len(QUESTIONS) - len(wrong) >= NUM_RIGHT, wrong


def test_drafts_change_nothing_but_the_number_of_forwards(llm: LLM) -> None:
    tokens = forwards = 0
    for question in ("Write a Python function that adds two numbers.", "How many days are in a week?"):
        slow, fast = answer(llm, question, "ar"), answer(llm, question, "verify")
        assert fast.token_ids == slow.token_ids
        tokens, forwards = tokens + fast.usage.completion_tokens, forwards + fast.usage.forwards
    assert tokens / forwards > 1.5


def test_prompt_lookup_saves_forwards_and_changes_no_token(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("harbour", "lantern", "orchard")
    lines = "".join(f"    {name} = config.get('{name}', '{name[::-1]}')\n" for name in names)
    text = f"def load(config):\n{lines}\n\ndef load_again(config):\n    harbour = config"
    params = decode_params("verify", canvas_len=16, max_new_tokens=40)
    with_lookup = llm.generate(text, params)
    monkeypatch.setattr(runner, "lookup", lambda text, draft, confidence: draft[:0])
    plain = llm.generate(text, params)
    assert with_lookup.token_ids == plain.token_ids
    assert with_lookup.usage.forwards < plain.usage.forwards
