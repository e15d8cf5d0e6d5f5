"""CompletionFormat: the pieces of answers -> `text_completion`, whole and in chunks."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import fsum
from typing import cast

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
from quicksilver.server.generation.plan import ReplyChunks, ReplyPlan, with_ignored
from quicksilver.server.generation.prompt_scores import prompt_logprobs_reply
from quicksilver.server.generation.respond import ReplyFormat, running_usage, wants_usage
from quicksilver.server.generation.usage import metrics_field, usage_reply
from quicksilver.server.services import Services
from quicksilver.text.answer import AnswerPiece, CollectedAnswer, Finished, ScoredPrompt, TextDelta
from quicksilver.text.channels import Channel
from quicksilver.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Detail:
    """What choices contain besides their text."""

    # Names the tokens, if log-probabilities are requested.
    tokenizer: Tokenizer | None = None
    has_token_ids: bool = False
    # The prompt and the token that ended the answer are listed too.
    has_echo: bool = False
    # Alternatives at each position.
    num_top: int = 0

    @property
    def logprobs(self) -> LegacyLogprobs | None:
        return LegacyLogprobs(self.tokenizer, self.num_top) if self.tokenizer else None


def finish_reason(finished: Finished) -> FinishReply:
    return "length" if finished.reason is FinishReason.LENGTH else "stop"


class LegacyLogprobs:
    """Log-probabilities as parallel lists, with the offset of each token in the text of the choice."""

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def reply(self, entries: Sequence[TokenLogprob], first_id: int | None = None) -> TextLogprobs:
        """`first_id` is a token before the entries that has no probability: the first of an echoed prompt."""
        reply: TextLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        if first_id is not None:
            self._add(reply, first_id, None, None)
        for entry in entries:
            self._add(reply, entry.token_id, max(entry.logprob, -9999.0), self._top(entry))
        return reply

    def _add(self, reply: TextLogprobs, token_id: int, logprob: float | None, top: dict[str, float] | None) -> None:
        reply["tokens"].append(self._tokenizer.token_text(token_id))
        reply["token_logprobs"].append(logprob)
        reply["top_logprobs"].append(top)
        reply["text_offset"].append(self._offset)
        # A special token adds no text, and a character of several tokens counts once.
        self._offset += len(self._utf8.decode(self._tokenizer.token_bytes(token_id)))

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """Of tokens with the same text the likeliest counts."""
        top: dict[str, float] = {}
        for token_id, logprob in entry.top[: self._num_top]:
            top.setdefault(self._tokenizer.token_text(token_id), max(logprob, -9999.0))
        return top


class CompletionFormat(ReplyFormat):
    def __init__(self, plan: ReplyPlan, body: FimBody | CompletionBody, services: Services) -> None:
        self._plan = plan = with_ignored(plan, body.ignored)
        self._fingerprint = services.engine.info.fingerprint
        self._detail = read_detail(body, services)
        self._prefixes = read_prefixes(body, plan, services)
        self._has_usage = wants_usage(body)
        self._running = running_usage(plan, body)
        self._num_returned = (body.n or 1) if isinstance(body, CompletionBody) else 1
        self._prompt_tokenizer = services.tokenizer if getattr(body, "prompt_logprobs", None) is not None else None
        self._chunks = TextChunks(plan, self._fingerprint, has_usage=self._has_usage)
        self._streams = [
            TextStream(i, self._chunks, self._detail, prefix, answer.request.prompt_ids[0])
            for i, (prefix, answer) in enumerate(zip(self._prefixes, plan.answers, strict=True))
        ]

    def whole(self, answers: Sequence[CollectedAnswer]) -> TextCompletion:
        finished = [answer.finished for answer in answers]
        return {
            "id": self._plan.id,
            "object": "text_completion",
            "created": self._plan.created,
            "model": self._plan.model,
            "choices": [self._choice(i, at, answers[at]) for i, at in enumerate(self._returned(answers))],
            "usage": usage_reply(finished, self._plan.num_answers),
            "warning": self._plan.warning,
            "system_fingerprint": self._fingerprint,
            **metrics_field(finished),
        }

    def _returned(self, answers: Sequence[CollectedAnswer]) -> Iterator[int]:
        """The answers to return: all, or with `best_of` the likeliest ones of each prompt."""
        for start in range(0, len(answers), self._plan.num_answers):
            candidates = list(range(start, start + self._plan.num_answers))
            if self._num_returned < len(candidates):
                candidates.sort(key=lambda i: -mean_logprob(answers[i]))
            yield from candidates[: self._num_returned]

    def _choice(self, index: int, at: int, answer: CollectedAnswer) -> TextChoice:
        """`at` is the place of the answer in the plan."""
        first_id = self._plan.answers[at].request.prompt_ids[0]
        choice = _choice(index, self._prefixes[at], answer, self._detail, first_id)
        if self._prompt_tokenizer is not None:
            choice["prompt_logprobs"] = prompt_logprobs_reply(answer.prompt_logprobs, self._prompt_tokenizer)
        return choice

    def chunks(self, index: int, piece: AnswerPiece) -> Iterable[TextChunk]:
        chunks = self._streams[index].chunks(piece)
        if self._running is None:
            return chunks
        usage = self._running.observe(index, piece)
        return [{**chunk, "usage": usage} for chunk in chunks]

    def end(self, finished: Sequence[Finished]) -> Iterable[TextChunk]:
        return (cast(TextChunk, self._chunks.with_usage(finished)),) if self._has_usage else ()


def read_detail(body: FimBody | CompletionBody, services: Services) -> Detail:
    if isinstance(body, FimBody):
        return Detail()
    tokenizer = services.tokenizer if body.logprobs is not None else None
    return Detail(tokenizer, bool(body.return_token_ids), bool(body.echo), body.logprobs or 0)


def read_prefixes(body: FimBody | CompletionBody, plan: ReplyPlan, services: Services) -> list[str]:
    """The text before each answer: its prompt with `echo`, else nothing."""
    if isinstance(body, CompletionBody) and body.echo:
        return [services.tokenizer.decode(answer.request.prompt_ids) for answer in plan.answers]
    return [""] * len(plan.answers)


def mean_logprob(answer: CollectedAnswer) -> float:
    """With the token that ended the answer: an empty answer has no other one."""
    stop = answer.finished.stop_logprob
    values = [entry.logprob for entry in (*answer.logprobs, *([stop] if stop else []))]
    return fsum(values) / max(len(values), 1)


def _choice(index: int, prefix: str, answer: CollectedAnswer, detail: Detail, first_id: int) -> TextChoice:
    entries, logprobs = answer.logprobs, detail.logprobs
    if detail.has_echo:
        stop = answer.finished.stop_logprob
        entries = [*filter(None, answer.prompt_logprobs), *entries, *([stop] if stop else [])]
    choice: TextChoice = {
        "index": index,
        "text": prefix + answer.content,
        "finish_reason": finish_reason(answer.finished),
        "logprobs": logprobs.reply(entries, first_id if detail.has_echo else None) if logprobs else None,
    }
    if detail.has_token_ids:
        choice["token_ids"] = answer.token_ids
    return choice


class TextChunks(ReplyChunks):
    def __init__(self, plan: ReplyPlan, fingerprint: str, *, has_usage: bool) -> None:
        super().__init__("text_completion", plan, fingerprint, has_usage=has_usage)

    def chunk(self, index: int, text: str, finish: FinishReply | None = None) -> TextChunk:
        return cast(TextChunk, self.with_choice(index, {"text": text}, finish))


class TextStream:
    """The chunks of one answer."""

    def __init__(self, index: int, chunks: TextChunks, detail: Detail, prefix: str = "", first_id: int = 0) -> None:
        """`prefix` is the echoed prompt and `first_id` its first token."""
        self._index = index
        self._chunks = chunks
        self._logprobs = detail.logprobs
        self._has_echo = detail.has_echo
        self._first_id = first_id if detail.has_echo else None
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
        elif isinstance(piece, ScoredPrompt):
            self._unsent += filter(None, piece.logprobs)
        elif isinstance(piece, Finished):
            if self._has_echo and piece.stop_logprob is not None:
                self._unsent.append(piece.stop_logprob)
            yield self._detailed(self._chunks.chunk(self._index, self._take_prefix(), finish_reason(piece)))

    def _take_prefix(self) -> str:
        prefix, self._prefix = self._prefix, ""
        return prefix

    def _detailed(self, chunk: TextChunk) -> TextChunk:
        """Tokens that add no text are sent with the next ones that do, or at the end."""
        if self._logprobs is not None and (self._unsent or self._first_id is not None):
            chunk["choices"][0]["logprobs"] = self._logprobs.reply(self._unsent, self._first_id)
            self._unsent, self._first_id = [], None
        if self._has_token_ids:
            chunk["choices"][0]["token_ids"] = self._unsent_ids
            self._unsent_ids = []
        return chunk
