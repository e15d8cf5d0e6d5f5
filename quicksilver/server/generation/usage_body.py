"""Token counts in both dialects at once: Mercury's five flat keys and OpenAI's detail objects."""

from __future__ import annotations

from typing_extensions import TypedDict


class PromptDetails(TypedDict):
    cached_tokens: int


class CompletionDetails(TypedDict):
    reasoning_tokens: int


class EngineWork(TypedDict):
    """Extension: what the answer took. A forward is one pass of the model in which this request had rows, a round one
    draft of `verify` with the verification behind it."""

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
