"""Answers in Ollama's form: one JSON object, or one object per line.

Arguments of a tool call are an object in this form, so a call is sent when it is complete.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from quicksilver.core import FinishReason, TokenLogprob
from quicksilver.errors import QuicksilverError
from quicksilver.server.endpoints.ollama.wire import OllamaCallReply, OllamaReply, OllamaTokenLogprob
from quicksilver.server.generation.plan import ReplyPlan
from quicksilver.server.generation.respond import ReplyFormat
from quicksilver.server.http.body import LineStream
from quicksilver.text.answer import AnswerPiece, CollectedAnswer, Finished, TextDelta
from quicksilver.text.channels import Channel
from quicksilver.text.tokenizer import Tokenizer


def timestamp(seconds: float | None = None) -> str:
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat().replace("+00:00", "Z")


class OllamaFormat(ReplyFormat):
    """`is_chat`: the text is part of a message; otherwise it is `response`."""

    last_bytes = b""
    stream_type = LineStream

    def __init__(self, plan: ReplyPlan, tokenizer: Tokenizer | None, *, is_chat: bool) -> None:
        """`tokenizer` names the tokens, if log-probabilities are requested."""
        self._plan = plan
        self._tokenizer = tokenizer
        self._is_chat = is_chat
        self._started = time.perf_counter()
        self._answer = CollectedAnswer()
        self._unsent: list[TokenLogprob] = []

    def whole(self, answers: Sequence[CollectedAnswer]) -> OllamaReply:
        answer = answers[0]
        reply = self._line(answer.content, answer.reasoning, answer.logprobs, read_calls(answer))
        return {**reply, **self._ending(answer)}  # type: ignore[typeddict-item]

    def chunks(self, index: int, piece: AnswerPiece) -> Iterable[OllamaReply]:
        self._answer.add(piece)
        if isinstance(piece, TextDelta):
            self._unsent += piece.logprobs
            texts = {Channel.CONTENT: "", Channel.REASONING: ""}
            for delta in piece.deltas:
                if delta.channel in texts:
                    texts[delta.channel] += delta.text
            if any(texts.values()):
                yield self._line(texts[Channel.CONTENT], texts[Channel.REASONING], self._take_logprobs())
        elif isinstance(piece, Finished):
            calls = read_calls(self._answer)
            if calls:
                yield self._line("", "", (), calls)
            yield {**self._line("", "", self._take_logprobs()), **self._ending(self._answer)}  # type: ignore[typeddict-item]

    def _take_logprobs(self) -> list[TokenLogprob]:
        """Of tokens that added no text so far, too: they are sent with the next text, or at the end."""
        taken, self._unsent = self._unsent, []
        return taken

    def failure(self, error: QuicksilverError) -> Iterable[Mapping[str, Any]]:
        return ({"error": error.message},)

    def encode(self, chunk: Mapping[str, Any]) -> bytes:
        return orjson.dumps(chunk) + b"\n"

    def _line(
        self,
        content: str,
        thinking: str,
        logprobs: Sequence[TokenLogprob],
        calls: Sequence[OllamaCallReply] = (),
    ) -> OllamaReply:
        line: OllamaReply = {"model": self._plan.model, "created_at": timestamp(), "done": False}
        if self._is_chat:
            line["message"] = {"role": "assistant", "content": content}
            if thinking:
                line["message"]["thinking"] = thinking
            if calls:
                line["message"]["tool_calls"] = list(calls)
        else:
            line["response"] = content
            if thinking:
                line["thinking"] = thinking
        if self._tokenizer is not None and logprobs:
            line["logprobs"] = [named(entry.token_id, entry.logprob, entry.top, self._tokenizer) for entry in logprobs]
        return line

    def _ending(self, answer: CollectedAnswer) -> dict[str, Any]:
        finished, now = answer.finished, time.perf_counter()
        first_at = answer.first_at or now
        return {
            "done": True,
            "done_reason": "length" if finished.reason is FinishReason.LENGTH else "stop",
            "total_duration": int(1e9 * (now - self._started)),
            "load_duration": 0,
            "prompt_eval_count": finished.usage.prompt_tokens,
            "prompt_eval_duration": int(1e9 * (first_at - self._started)),
            "eval_count": finished.usage.completion_tokens,
            "eval_duration": int(1e9 * (now - first_at)),
        }


def named(token_id: int, logprob: float, top: Sequence[tuple[int, float]], tokenizer: Tokenizer) -> OllamaTokenLogprob:
    entry: OllamaTokenLogprob = {
        "token": tokenizer.token_text(token_id),
        "logprob": max(logprob, -9999.0),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }
    if top:
        entry["top_logprobs"] = [named(other, value, (), tokenizer) for other, value in top]
    return entry


def read_calls(answer: CollectedAnswer) -> list[OllamaCallReply]:
    """Complete calls: the arguments of a call that was cut off are not JSON."""
    calls: list[OllamaCallReply] = []
    for call in answer.calls:
        try:
            arguments = orjson.loads(call.arguments or "{}")
        except orjson.JSONDecodeError:
            continue
        calls.append({"function": {"name": call.name, "arguments": arguments if isinstance(arguments, dict) else {}}})
    return calls
