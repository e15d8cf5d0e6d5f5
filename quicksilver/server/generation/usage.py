"""Token counts of a reply in both dialects at once: Mercury's five flat keys and OpenAI's detail objects."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import TypedDict

from quicksilver.text.answer import Finished


class PromptDetails(TypedDict):
    cached_tokens: int


class CompletionDetails(TypedDict):
    reasoning_tokens: int


class EngineWork(TypedDict):
    """Extension: the engine's work. A forward is one pass of the model in which this request had rows; a round is one
    draft of `verify` with its verification."""

    forwards: int
    tokens_per_forward: float
    rounds: int
    drafted_tokens: int
    accepted_tokens: int


class UsageReply(TypedDict):
    """`completion_tokens` includes the reasoning, so `total_tokens` is the sum of prompt and completion."""

    prompt_tokens: int
    reasoning_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_input_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
    quicksilver: EngineWork


def usage_reply(finished: Sequence[Finished], num_answers: int = 1) -> UsageReply:
    """`finished` holds `num_answers` entries per prompt, prompt by prompt. A prompt counts once."""
    prompts = [each.usage for each in finished[::num_answers]]
    prompt, cached = sum(u.prompt_tokens for u in prompts), sum(u.cached_tokens for u in prompts)
    completion = sum(each.usage.completion_tokens for each in finished)
    reasoning = sum(each.num_reasoning for each in finished)
    forwards = sum(each.usage.forwards for each in finished)
    return {
        "prompt_tokens": prompt,
        "reasoning_tokens": reasoning,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "cached_input_tokens": cached,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
        "quicksilver": {
            "forwards": forwards,
            "tokens_per_forward": round(completion / forwards, 3) if forwards else 0.0,
            "rounds": sum(each.usage.rounds for each in finished),
            "drafted_tokens": sum(each.usage.drafted for each in finished),
            "accepted_tokens": sum(each.usage.accepted for each in finished),
        },
    }
