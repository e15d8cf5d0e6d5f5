"""Counts of one request in both dialects. A prompt counts once, however many answers were made of it."""

from __future__ import annotations

from collections.abc import Sequence

from quicksilver.server.generation.answer import Ended
from quicksilver.server.generation.usage_body import UsageReply


def usage_reply(ended: Sequence[Ended], num_answers: int = 1) -> UsageReply:
    """`ended` holds `num_answers` entries a prompt, prompt by prompt."""
    prompts = [end.usage for end in ended[::num_answers]]
    prompt, cached = sum(u.prompt_tokens for u in prompts), sum(u.cached_tokens for u in prompts)
    completion = sum(end.usage.completion_tokens for end in ended)
    reasoning = sum(end.num_reasoning for end in ended)
    forwards = sum(end.usage.forwards for end in ended)
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
            "rounds": sum(end.usage.rounds for end in ended),
            "drafted_tokens": sum(end.usage.drafted for end in ended),
            "accepted_tokens": sum(end.usage.accepted for end in ended),
        },
    }
