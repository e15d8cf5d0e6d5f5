"""Pieces of answers -> `chat.completion` and `chat.completion.chunk`.

Plain streams append and never retract; under `diffusing` the content of a chunk replaces what was shown, and the last
one equals the plain content byte for byte.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from quicksilver.core import FinishReason, TokenLogprob
from quicksilver.server.endpoints.chat.wire import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    FinishReply,
    LogprobsReply,
    MessageReply,
    ReasoningSummary,
    TokenLogprobReply,
    ToolCallReply,
    TopLogprob,
)
from quicksilver.server.generation.answer import Ended, Said
from quicksilver.server.generation.collect import Whole
from quicksilver.server.generation.plan import Plan
from quicksilver.server.generation.usage import usage_reply
from quicksilver.text.channels import Channel, ChannelDelta
from quicksilver.text.tokenizer import Tokenizer

MAX_SUMMARY_CHARS = 400


def finish_word(ended: Ended) -> FinishReply:
    if ended.finish is FinishReason.LENGTH:
        return "length"
    return "tool_calls" if ended.num_calls else "stop"


def new_call_id() -> str:
    return f"chatcmpl-tool-{uuid.uuid4().hex[:16]}"


def summarise(reasoning: str, *, may_think: bool) -> ReasoningSummary:
    """The opening of the reasoning, cut at a sentence."""
    text = " ".join(reasoning.split())
    if not text:
        return {"content": None, "status": "unavailable" if may_think else "skipped"}
    if len(text) > MAX_SUMMARY_CHARS:
        opening = text[:MAX_SUMMARY_CHARS]
        text = opening[: opening.rfind(". ") + 1] or opening
    return {"content": text, "status": "complete"}


class TokenNames:
    """Log-probabilities in OpenAI's shape: each token as text and as bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def reply(self, logprobs: Sequence[TokenLogprob]) -> LogprobsReply:
        return {"content": [self._token(entry) for entry in logprobs], "refusal": None}

    def _token(self, entry: TokenLogprob) -> TokenLogprobReply:
        top = [self._named(token_id, logprob) for token_id, logprob in entry.top]
        named = self._named(entry.token_id, entry.logprob)
        return {"token": named["token"], "logprob": named["logprob"], "bytes": named["bytes"], "top_logprobs": top}

    def _named(self, token_id: int, logprob: float) -> TopLogprob:
        # -9999 is what OpenAI prints for "impossible"; JSON has no infinity.
        return {
            "token": self._tokenizer.token_text(token_id),
            "logprob": max(logprob, -9999.0),
            "bytes": list(self._tokenizer.token_bytes(token_id)),
        }


def completion(plan: Plan, answers: Sequence[Whole], names: TokenNames | None, fingerprint: str) -> ChatCompletion:
    return {
        "id": plan.id,
        "object": "chat.completion",
        "created": plan.created,
        "model": plan.model,
        "choices": [choice(i, answer, names) for i, answer in enumerate(answers)],
        "usage": usage_reply([answer.ended for answer in answers], plan.num_answers),
        "warning": plan.warning,
        "reasoning_summary": None,
        "system_fingerprint": fingerprint,
    }


def choice(index: int, answer: Whole, names: TokenNames | None) -> ChatChoice:
    return {
        "index": index,
        "message": message(answer),
        "finish_reason": finish_word(answer.ended),
        "logprobs": names.reply(answer.logprobs) if names else None,
    }


def message(answer: Whole) -> MessageReply:
    calls: list[ToolCallReply] = [
        {
            "index": i,
            "id": new_call_id(),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for i, call in enumerate(answer.calls)
    ]
    reply: MessageReply = {
        "role": "assistant",
        "content": answer.content if answer.content or not calls else None,
        "tool_calls": calls,
        "tool_call_id": None,
        "refusal": None,
    }
    if answer.reasoning:
        reply["reasoning_content"] = answer.reasoning
    return reply


class Chunks:
    """The chunks of one streamed reply; same id, time, model and fingerprint on all of them."""

    def __init__(self, plan: Plan, fingerprint: str, *, has_usage: bool) -> None:
        self._head: dict[str, Any] = {
            "id": plan.id,
            "object": "chat.completion.chunk",
            "created": plan.created,
            "model": plan.model,
            "system_fingerprint": fingerprint,
        }
        self._tail: dict[str, Any] = {"usage": None} if has_usage else {}
        self._num_answers = plan.num_answers

    def chunk(self, index: int, delta: dict[str, Any], finish: FinishReply | None = None) -> ChatChunk:
        choices = [{"index": index, "delta": delta, "finish_reason": finish, "logprobs": None}]
        return {**self._head, "choices": choices, **self._tail}  # type: ignore[typeddict-item]

    def opening(self, index: int) -> ChatChunk:
        """What Mercury repeats on every chunk is said here only, since clients add up words that come twice."""
        chunk = self.chunk(index, {"role": "assistant", "content": ""})
        chunk["reasoning_summary"] = None
        return chunk

    def usage(self, ended: Sequence[Ended]) -> ChatChunk:
        return {**self._head, "choices": [], "usage": usage_reply(ended, self._num_answers)}  # type: ignore[typeddict-item]


class CallDeltas:
    """Tool-call deltas of one answer: id, type and name once, arguments in pieces."""

    def __init__(self) -> None:
        self._num_opened = 0

    def delta(self, piece: ChannelDelta) -> dict[str, Any]:
        if piece.index < self._num_opened:
            return {"index": piece.index, "function": {"arguments": piece.text}}
        self._num_opened = piece.index + 1
        function = {"name": piece.name, "arguments": piece.text}
        return {"index": piece.index, "id": new_call_id(), "type": "function", "function": function}


def text_deltas(said: Said, calls: CallDeltas) -> list[dict[str, Any]]:
    """One delta a run of the same channel, so that a step's tokens travel together."""
    deltas: list[dict[str, Any]] = []
    for piece in said.deltas:
        if piece.channel is Channel.TOOL_CALL:
            deltas.append({"tool_calls": [calls.delta(piece)]})
        else:
            key = "content" if piece.channel is Channel.CONTENT else "reasoning_content"
            if deltas and key in deltas[-1]:
                deltas[-1][key] += piece.text
            else:
                deltas.append({key: piece.text})
    return deltas
