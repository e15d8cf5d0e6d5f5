"""CompletionFormat: the pieces of answers -> `text_completion`, whole and in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from quicksilver.core import FinishReason, TokenLogprob
from quicksilver.server.endpoints.completions.wire import (
    CompletionBody,
    FimBody,
    FinishReply,
    TextChoice,
    TextChunk,
    TextCompletion,
    TextLogprobs,
)
from quicksilver.server.generation.plan import ReplyPlan
from quicksilver.server.generation.respond import ReplyFormat, wants_usage
from quicksilver.server.generation.usage import usage_reply
from quicksilver.server.services import Services
from quicksilver.text.answer import AnswerPiece, CollectedAnswer, Finished, TextDelta
from quicksilver.text.channels import Channel
from quicksilver.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Detail:
    """What choices contain besides their text."""

    # Names the tokens, if log-probabilities are requested.
    tokenizer: Tokenizer | None = None
    has_token_ids: bool = False


def finish_reason(finished: Finished) -> FinishReply:
    return "length" if finished.reason is FinishReason.LENGTH else "stop"


class LegacyLogprobs:
    """Log-probabilities as parallel lists, with the offset of each token in the answer."""

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


class CompletionFormat(ReplyFormat):
    def __init__(self, plan: ReplyPlan, body: FimBody | CompletionBody, services: Services) -> None:
        self._plan = plan
        self._fingerprint = services.engine.info.fingerprint
        self._detail = read_detail(body, services)
        self._prefixes = read_prefixes(body, plan, services)
        self._has_usage = wants_usage(body)
        self._chunks = TextChunks(plan, self._fingerprint, has_usage=self._has_usage)
        self._streams = [TextStream(i, self._chunks, self._detail, prefix) for i, prefix in enumerate(self._prefixes)]

    def whole(self, answers: Sequence[CollectedAnswer]) -> TextCompletion:
        return {
            "id": self._plan.id,
            "object": "text_completion",
            "created": self._plan.created,
            "model": self._plan.model,
            "choices": [_choice(i, self._prefixes[i], answer, self._detail) for i, answer in enumerate(answers)],
            "usage": usage_reply([answer.finished for answer in answers], self._plan.num_answers),
            "warning": self._plan.warning,
            "system_fingerprint": self._fingerprint,
        }

    def chunks(self, index: int, piece: AnswerPiece) -> Iterable[TextChunk]:
        return self._streams[index].chunks(piece)

    def end(self, finished: Sequence[Finished]) -> Iterable[TextChunk]:
        return (self._chunks.usage(finished),) if self._has_usage else ()


def read_detail(body: FimBody | CompletionBody, services: Services) -> Detail:
    if isinstance(body, FimBody):
        return Detail()
    return Detail(services.tokenizer if body.logprobs is not None else None, bool(body.return_token_ids))


def read_prefixes(body: FimBody | CompletionBody, plan: ReplyPlan, services: Services) -> list[str]:
    """The text before each answer: its prompt with `echo`, else nothing."""
    if isinstance(body, CompletionBody) and body.echo:
        return [services.tokenizer.decode(answer.request.prompt_ids) for answer in plan.answers]
    return [""] * len(plan.answers)


def _choice(index: int, prefix: str, answer: CollectedAnswer, detail: Detail) -> TextChoice:
    choice: TextChoice = {
        "index": index,
        "text": prefix + answer.content,
        "finish_reason": finish_reason(answer.finished),
        "logprobs": LegacyLogprobs(detail.tokenizer).reply(answer.logprobs) if detail.tokenizer else None,
    }
    if detail.has_token_ids:
        choice["token_ids"] = answer.token_ids
    return choice


class TextChunks:
    """Makes the chunks of one streamed reply; all have the same id, time, model and fingerprint."""

    def __init__(self, plan: ReplyPlan, fingerprint: str, *, has_usage: bool) -> None:
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

    def usage(self, finished: Sequence[Finished]) -> TextChunk:
        usage = usage_reply(finished, self._num_answers)
        return {**self._head, "choices": [], "usage": usage}  # type: ignore[typeddict-item]


class TextStream:
    """The chunks of one answer."""

    def __init__(self, index: int, chunks: TextChunks, detail: Detail, prefix: str = "") -> None:
        self._index = index
        self._chunks = chunks
        self._logprobs = LegacyLogprobs(detail.tokenizer) if detail.tokenizer else None
        self._has_token_ids = detail.has_token_ids
        self._unsent: list[TokenLogprob] = []
        self._unsent_ids: list[int] = []
        self._prefix = prefix

    def chunks(self, piece: AnswerPiece) -> Iterator[TextChunk]:
        if isinstance(piece, TextDelta):
            self._unsent += piece.logprobs
            self._unsent_ids += piece.token_ids if self._has_token_ids else ()
            text = "".join(delta.text for delta in piece.deltas if delta.channel is Channel.CONTENT)
            if text:
                yield self._detailed(self._chunks.chunk(self._index, self._take_prefix() + text))
        elif isinstance(piece, Finished):
            yield self._detailed(self._chunks.chunk(self._index, self._take_prefix(), finish_reason(piece)))

    def _take_prefix(self) -> str:
        prefix, self._prefix = self._prefix, ""
        return prefix

    def _detailed(self, chunk: TextChunk) -> TextChunk:
        """Tokens that add no text are sent with the next ones that do, or at the end."""
        if self._logprobs is not None and self._unsent:
            chunk["choices"][0]["logprobs"] = self._logprobs.reply(self._unsent)
            self._unsent = []
        if self._has_token_ids:
            chunk["choices"][0]["token_ids"] = self._unsent_ids
            self._unsent_ids = []
        return chunk
