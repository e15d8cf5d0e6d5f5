"""Token counts of a reply with several prompts and answers."""

from __future__ import annotations

from quicksilver.core import FinishReason, Usage
from quicksilver.server.generation.usage import usage_reply
from quicksilver.text.answer import Finished


def finished(prompt: int, cached: int, completion: int, reasoning: int = 0) -> Finished:
    return Finished(FinishReason.STOP, Usage(prompt, cached, completion, forwards=2, rounds=1), reasoning)


def test_a_prompt_counts_once_and_every_answer_counts() -> None:
    reply = usage_reply([finished(10, 4, 3, 1), finished(10, 4, 5), finished(20, 0, 7), finished(20, 0, 9)], 2)
    assert (reply["prompt_tokens"], reply["completion_tokens"], reply["total_tokens"]) == (30, 24, 54)
    assert reply["cached_input_tokens"] == reply["prompt_tokens_details"]["cached_tokens"] == 4
    assert reply["reasoning_tokens"] == reply["completion_tokens_details"]["reasoning_tokens"] == 1
    assert reply["quicksilver"]["forwards"] == 8
    assert reply["quicksilver"]["tokens_per_forward"] == 3.0


def test_a_reply_without_answers_has_zero_usage() -> None:
    reply = usage_reply([])
    assert (reply["total_tokens"], reply["quicksilver"]["tokens_per_forward"]) == (0, 0.0)
