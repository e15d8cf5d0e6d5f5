"""Counts of one request in both dialects. The prompt counts once, however many answers were made of it."""

from __future__ import annotations

from collections.abc import Sequence

from quicksilver.server.answer import Ended
from quicksilver.server.wire.usage import UsageReply


def usage_reply(ended: Sequence[Ended]) -> UsageReply:
    first = ended[0].usage
    completion = sum(end.usage.completion_tokens for end in ended)
    reasoning = sum(end.num_reasoning for end in ended)
    forwards = sum(end.usage.forwards for end in ended)
    return {
        "prompt_tokens": first.prompt_tokens,
        "reasoning_tokens": reasoning,
        "completion_tokens": completion,
        "total_tokens": first.prompt_tokens + completion,
        "cached_input_tokens": first.cached_tokens,
        "prompt_tokens_details": {"cached_tokens": first.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
        "quicksilver": {
            "forwards": forwards,
            "tokens_per_forward": round(completion / forwards, 3) if forwards else 0.0,
            "drafted_tokens": sum(end.usage.drafted for end in ended),
            "accepted_tokens": sum(end.usage.accepted for end in ended),
        },
    }
