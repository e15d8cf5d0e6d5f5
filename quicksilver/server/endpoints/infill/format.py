"""Infill answers in llama.cpp's form. A stream ends with a chunk whose `stop` is true, and not with [DONE]."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quicksilver.core import FinishReason
from quicksilver.server.endpoints.infill.wire import InfillBody, InfillReply, InfillTimings
from quicksilver.server.generation.plan import ReplyPlan
from quicksilver.server.generation.respond import ReplyFormat
from quicksilver.text.answer import AnswerPiece, CollectedAnswer, Finished, TextDelta
from quicksilver.text.channels import Channel


class InfillFormat(ReplyFormat):
    last_bytes = b""

    def __init__(self, plan: ReplyPlan, body: InfillBody) -> None:
        self._plan = plan
        self._fields = body.response_fields
        self._started = time.perf_counter()
        self._answer = CollectedAnswer()

    def whole(self, answers: Sequence[CollectedAnswer]) -> Mapping[str, Any]:
        return choose_fields(self._reply(answers[0].content, answers[0]), self._fields)

    def chunks(self, index: int, piece: AnswerPiece) -> Iterable[Mapping[str, Any]]:
        self._answer.add(piece)
        if isinstance(piece, TextDelta):
            text = "".join(delta.text for delta in piece.deltas if delta.channel is Channel.CONTENT)
            if text:
                yield {"index": 0, "content": text, "stop": False}
        elif isinstance(piece, Finished):
            yield choose_fields(self._reply("", self._answer), self._fields)

    def _reply(self, content: str, answer: CollectedAnswer) -> InfillReply:
        finished, usage = answer.finished, answer.finished.usage
        is_cut = finished.reason is FinishReason.LENGTH
        return {
            "index": 0,
            "content": content,
            "model": self._plan.model,
            "stop": True,
            "stop_type": "limit" if is_cut else "word" if finished.stop else "eos",
            "stopping_word": finished.stop or "",
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "tokens_cached": usage.cached_tokens,
            "truncated": False,
            "timings": self._timings(answer),
        }

    def _timings(self, answer: CollectedAnswer) -> InfillTimings:
        usage, now = answer.finished.usage, time.perf_counter()
        first_at = answer.first_at or now
        prompt_s, predicted_s = max(first_at - self._started, 1e-6), max(now - first_at, 1e-6)
        num_prompt = usage.prompt_tokens - usage.cached_tokens
        return {
            "prompt_n": num_prompt,
            "prompt_ms": round(1000 * prompt_s, 3),
            "prompt_per_second": round(num_prompt / prompt_s, 3),
            "predicted_n": usage.completion_tokens,
            "predicted_ms": round(1000 * predicted_s, 3),
            "predicted_per_second": round(usage.completion_tokens / predicted_s, 3),
            "cache_n": usage.cached_tokens,
        }


def choose_fields(reply: InfillReply, names: Sequence[str] | None) -> dict[str, Any]:
    """Only the named fields; `timings/prompt_n` names one inside another and keeps its whole name as the key."""
    if not names:
        return dict(reply)
    chosen: dict[str, Any] = {}
    for name in names:
        value: Any = reply
        for key in name.split("/"):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            chosen[name] = value
    return chosen
