"""Answer and Piece: what LLM and AsyncLLM return, and how events of the engine become them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quicksilver.core import Delta, Event, FinishReason, Frame, TokenLogprob, Usage
from quicksilver.text.answer import AnswerReader, CollectedAnswer, Finished, TextDelta
from quicksilver.text.channels import Channel


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished text with its tokens, finish reason and usage."""

    text: str
    token_ids: tuple[int, ...]
    finish: FinishReason
    usage: Usage
    # One entry per token of `text`, if `DecodeParams.logprobs` is set.
    logprobs: tuple[TokenLogprob, ...] = ()
    # The text of the reasoning channel, if `chat` was called with an effort.
    reasoning: str = ""
    # The probability of each label, if the call had `choice`.
    probabilities: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer: new text that will not change, or the current canvas."""

    text: str = ""
    delta: Delta | None = None
    frame: Frame | None = None
    # New text of the reasoning channel.
    reasoning: str = ""


class AnswerCollector:
    """Turns the events of one request into pieces, and after the last one into an Answer."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader
        self._collected = CollectedAnswer()
        self._usage = Usage()

    @property
    def is_finished(self) -> bool:
        return self._reader.is_finished

    @property
    def num_tokens(self) -> int:
        return len(self._collected.token_ids)

    def read(self, event: Event) -> Piece:
        pieces = self._reader.read(event)
        for piece in pieces:
            self._collected.add(piece)
        if isinstance(event, Frame):
            return Piece(frame=event)
        self._usage = event.usage or self._usage
        deltas = [delta for piece in pieces if isinstance(piece, TextDelta) for delta in piece.deltas]
        texts = {
            channel: "".join(delta.text for delta in deltas if delta.channel is channel)
            for channel in (Channel.CONTENT, Channel.REASONING)
        }
        return Piece(texts[Channel.CONTENT], delta=event, reasoning=texts[Channel.REASONING])

    def answer(self) -> Answer:
        collected, finished = self._collected, self._collected.finished
        assert isinstance(finished, Finished)
        return Answer(
            text=collected.content,
            token_ids=tuple(collected.token_ids),
            finish=finished.reason,
            usage=self._usage,
            logprobs=tuple(collected.logprobs),
            reasoning=collected.reasoning,
        )
