"""Pieces of answers -> `text_completion`, whole and in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from quicksilver.core import FinishReason, TokenLogprob
from quicksilver.server.endpoints.completions.wire import (
    FinishReply,
    TextChoice,
    TextChunk,
    TextCompletion,
    TextLogprobs,
)
from quicksilver.server.generation.answer import Ended, Piece, Said
from quicksilver.server.generation.collect import Whole
from quicksilver.server.generation.plan import Plan
from quicksilver.server.generation.usage import usage_reply
from quicksilver.text.channels import Channel
from quicksilver.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Detail:
    """What choices carry beside their text, where the caller asked for it."""

    scorer: Tokenizer | None = None
    """Names tokens where log-probabilities were asked for."""
    has_token_ids: bool = False


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
    plan: Plan, answers: Sequence[Whole], fingerprint: str, detail: Detail, prefixes: Sequence[str]
) -> TextCompletion:
    """`prefixes` come before each answer's text."""
    return {
        "id": plan.id,
        "object": "text_completion",
        "created": plan.created,
        "model": plan.model,
        "choices": [_choice(i, prefixes[i], answer, detail) for i, answer in enumerate(answers)],
        "usage": usage_reply([answer.ended for answer in answers], plan.num_answers),
        "warning": plan.warning,
        "system_fingerprint": fingerprint,
    }


def _choice(index: int, prefix: str, answer: Whole, detail: Detail) -> TextChoice:
    choice: TextChoice = {
        "index": index,
        "text": prefix + answer.content,
        "finish_reason": finish_word(answer.ended),
        "logprobs": LegacyLogprobs(detail.scorer).reply(answer.logprobs) if detail.scorer else None,
    }
    if detail.has_token_ids:
        choice["token_ids"] = answer.token_ids
    return choice


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

    def __init__(self, index: int, chunks: TextChunks, detail: Detail, prefix: str = "") -> None:
        self._index = index
        self._chunks = chunks
        self._logprobs = LegacyLogprobs(detail.scorer) if detail.scorer else None
        self._has_token_ids = detail.has_token_ids
        self._unsent: list[TokenLogprob] = []
        self._unsent_ids: list[int] = []
        self._prefix = prefix

    def tell(self, piece: Piece) -> Iterator[TextChunk]:
        if isinstance(piece, Said):
            self._unsent += piece.logprobs
            self._unsent_ids += piece.token_ids if self._has_token_ids else ()
            text = "".join(delta.text for delta in piece.deltas if delta.channel is Channel.CONTENT)
            if text:
                yield self._detailed(self._chunks.chunk(self._index, self._take_prefix() + text))
        elif isinstance(piece, Ended):
            yield self._detailed(self._chunks.chunk(self._index, self._take_prefix(), finish_word(piece)))

    def _take_prefix(self) -> str:
        prefix, self._prefix = self._prefix, ""
        return prefix

    def _detailed(self, chunk: TextChunk) -> TextChunk:
        """Tokens without a text of their own go out with the next ones that have one, or at the end."""
        if self._logprobs is not None and self._unsent:
            chunk["choices"][0]["logprobs"] = self._logprobs.reply(self._unsent)
            self._unsent = []
        if self._has_token_ids:
            chunk["choices"][0]["token_ids"] = self._unsent_ids
            self._unsent_ids = []
        return chunk
