"""The pieces of a chat answer -> its chunks: opening, deltas or snapshots, closing."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass

from quicksilver.core import TokenLogprob
from quicksilver.server.endpoints.chat.format import (
    CallDeltas,
    Chunks,
    TokenNames,
    finish_word,
    summarise,
    text_deltas,
)
from quicksilver.server.endpoints.chat.wire import ChatChunk
from quicksilver.server.generation.answer import Ended, Piece, Said, Shown
from quicksilver.server.generation.collect import Whole
from quicksilver.server.generation.events import SideBySide, reply_events
from quicksilver.server.generation.frames import FrameTeller
from quicksilver.server.generation.job import Job
from quicksilver.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class StreamStyle:
    """How a caller wants its stream."""

    has_usage: bool = False
    has_logprobs: bool = False
    has_alternatives: bool = False
    """Snapshots that list tokens also list what else might stand there."""
    has_summary: bool = False
    may_think: bool = False
    is_diffusing: bool = False
    shows_tokens: bool = False
    """Snapshots list every canvas position; then none is left out for coming too soon."""
    min_gap_s: float = 0.0
    """Seconds between two snapshots."""


def chat_events(job: Job, chunks: Chunks, tokenizer: Tokenizer, style: StreamStyle) -> AsyncGenerator[bytes]:
    tellers = [ChatTeller(i, chunks, tokenizer, style) for i in range(len(job.plan.asks))]
    return reply_events(job, SideBySide(tellers), chunks.usage if style.has_usage else None)


class ChatTeller:
    """Turns the pieces of one answer into its chunks."""

    def __init__(self, index: int, chunks: Chunks, tokenizer: Tokenizer, style: StreamStyle) -> None:
        self._index = index
        self._chunks = chunks
        self._style = style
        listing = tokenizer if style.shows_tokens else None
        self._frames = FrameTeller(listing, has_alternatives=style.has_alternatives)
        self._names = TokenNames(tokenizer) if style.has_logprobs else None
        self._calls = CallDeltas()
        self._whole = Whole()
        self._unsent_logprobs: list[TokenLogprob] = []
        self._is_open = False
        self._last_shown = float("-inf")
        self._shown_text = ""
        self._has_frames = False

    def tell(self, piece: Piece) -> Iterator[ChatChunk]:
        if not self._is_open:
            self._is_open = True
            yield self._chunks.opening(self._index)
        self._whole.add(piece)
        if isinstance(piece, Said):
            yield from self._tell_said(piece)
        elif isinstance(piece, Shown):
            yield from self._tell_shown(piece)
        else:
            yield from self._tell_end(piece)

    def _tell_said(self, said: Said) -> Iterator[ChatChunk]:
        self._unsent_logprobs += said.logprobs
        self._frames.settle(said.settled)
        for delta in text_deltas(said, self._calls):
            if "content" not in delta or not self._style.is_diffusing:
                yield self._with_logprobs(self._chunks.chunk(self._index, delta), is_content="content" in delta)
            elif not self._has_frames and self._whole.content != self._shown_text and self._is_due():
                yield self._committed_snapshot(step=0)

    def _tell_shown(self, shown: Shown) -> Iterator[ChatChunk]:
        # A frame shows more than the text committed just before it, so committed text waits for the next frame.
        self._has_frames = True
        if self._style.is_diffusing and (self._style.shows_tokens or self._is_due()):
            yield {**self._snapshot(shown.text), "quicksilver": self._frames.tell(shown)}

    def _tell_end(self, ended: Ended) -> Iterator[ChatChunk]:
        is_shown = self._whole.content == self._shown_text and not self._frames.has_untold
        if self._style.is_diffusing and not is_shown:
            yield self._committed_snapshot(step=ended.usage.forwards)
        closing = self._chunks.chunk(self._index, {}, finish_word(ended))
        if self._style.has_summary:
            closing["reasoning_summary"] = summarise(self._whole.reasoning, may_think=self._style.may_think)
        yield self._with_logprobs(closing, is_content=True)

    def _committed_snapshot(self, step: int) -> ChatChunk:
        content = self._whole.content
        return {**self._snapshot(content), "quicksilver": self._frames.tell_committed(content, step)}

    def _snapshot(self, text: str) -> ChatChunk:
        self._shown_text = text
        return self._chunks.chunk(self._index, {"content": text})

    def _with_logprobs(self, chunk: ChatChunk, *, is_content: bool) -> ChatChunk:
        if self._names is not None and is_content and self._unsent_logprobs:
            chunk["choices"][0]["logprobs"] = self._names.reply(self._unsent_logprobs)
            self._unsent_logprobs = []
        return chunk

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now - self._last_shown < self._style.min_gap_s:
            return False
        self._last_shown = now
        return True
