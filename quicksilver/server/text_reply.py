"""Pieces of answers -> `text_completion`, whole and in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from quicksilver.core import FinishReason, TokenLogprob
from quicksilver.server.answer import Ended, Piece, Said
from quicksilver.server.collect import Whole
from quicksilver.server.plan import Plan
from quicksilver.server.usage import usage_reply
from quicksilver.server.wire.completion import FinishReply, TextChunk, TextCompletion, TextLogprobs
from quicksilver.text.channels import Channel
from quicksilver.text.tokenizer import Tokenizer


def finish_word(ended: Ended) -> FinishReply:
    return "length" if ended.finish is FinishReason.LENGTH else "stop"


class LegacyLogprobs:
    """Parallel lists, and where in the answer each token begins."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0

    def reply(self, entries: Sequence[TokenLogprob]) -> TextLogprobs:
        reply: TextLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for entry in entries:
            text = self._tokenizer.token_text(entry.token_id)
            reply["tokens"].append(text)
            reply["token_logprobs"].append(max(entry.logprob, -9999.0))
            reply["top_logprobs"].append({self._tokenizer.token_text(i): max(p, -9999.0) for i, p in entry.top})
            reply["text_offset"].append(self._offset)
            self._offset += len(text)
        return reply


def text_completion(
    plan: Plan, answers: Sequence[Whole], fingerprint: str, scorer: Tokenizer | None, prefixes: Sequence[str]
) -> TextCompletion:
    """`scorer` names tokens where log-probabilities were asked for; `prefixes` come before each answer's text."""
    return {
        "id": plan.id,
        "object": "text_completion",
        "created": plan.created,
        "model": plan.model,
        "choices": [
            {
                "index": i,
                "text": prefixes[i] + answer.content,
                "finish_reason": finish_word(answer.ended),
                "logprobs": LegacyLogprobs(scorer).reply(answer.logprobs) if scorer else None,
            }
            for i, answer in enumerate(answers)
        ],
        "usage": usage_reply([answer.ended for answer in answers], plan.num_answers),
        "warning": plan.warning,
        "system_fingerprint": fingerprint,
    }


class TextChunks:
    """The chunks of one streamed reply; same id, time, model and fingerprint on all of them."""

    def __init__(self, plan: Plan, fingerprint: str, *, has_usage: bool) -> None:
        self._head: dict[str, Any] = {
            "id": plan.id,
            "object": "text_completion",
            "created": plan.created,
            "model": plan.model,
            "system_fingerprint": fingerprint,
        }
        self._tail: dict[str, Any] = {"usage": None} if has_usage else {}
        self._num_answers = plan.num_answers

    def chunk(self, index: int, text: str, finish: FinishReply | None = None) -> TextChunk:
        choices = [{"index": index, "text": text, "finish_reason": finish, "logprobs": None}]
        return {**self._head, "choices": choices, **self._tail}  # type: ignore[typeddict-item]

    def usage(self, ended: Sequence[Ended]) -> TextChunk:
        usage = usage_reply(ended, self._num_answers)
        return {**self._head, "choices": [], "usage": usage}  # type: ignore[typeddict-item]


class TextTeller:
    """Turns the pieces of one answer into its chunks."""

    def __init__(self, index: int, chunks: TextChunks, scorer: Tokenizer | None, prefix: str = "") -> None:
        self._index = index
        self._chunks = chunks
        self._logprobs = LegacyLogprobs(scorer) if scorer else None
        self._unsent: list[TokenLogprob] = []
        self._prefix = prefix

    def tell(self, piece: Piece) -> Iterator[TextChunk]:
        if isinstance(piece, Said):
            self._unsent += piece.logprobs
            text = "".join(delta.text for delta in piece.deltas if delta.channel is Channel.CONTENT)
            if text:
                yield self._scored(self._chunks.chunk(self._index, self._take_prefix() + text))
        elif isinstance(piece, Ended):
            yield self._scored(self._chunks.chunk(self._index, self._take_prefix(), finish_word(piece)))

    def _take_prefix(self) -> str:
        prefix, self._prefix = self._prefix, ""
        return prefix

    def _scored(self, chunk: TextChunk) -> TextChunk:
        if self._logprobs is not None and self._unsent:
            chunk["choices"][0]["logprobs"] = self._logprobs.reply(self._unsent)
            self._unsent = []
        return chunk
