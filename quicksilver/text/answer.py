"""Engine events -> the pieces of one answer: committed text by channel, canvas snapshots, and how the answer ended.

Committed text only grows. A snapshot shows the content as it would read if the canvas were committed now; showing it
commits nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from quicksilver.core import Delta, Event, FinishReason, Frame, Request, TokenLogprob, Usage
from quicksilver.errors import (
    ContextTooLong,
    EngineOverloaded,
    EngineUnavailable,
    InvalidGrammar,
    InvalidRequest,
    OutputInvalid,
    QuicksilverError,
    RowFailed,
)
from quicksilver.text.canvas_text import CanvasText, CommittedToken
from quicksilver.text.channels import Channel, ChannelDelta, Channels, Detokenizer
from quicksilver.text.tokenizer import Tokenizer

# Longest reason why an output is invalid: it may name keys that the model wrote.
MAX_FAULT_CHARS = 200
# Errors that the engine reports by code and that are not failures of its own.
KNOWN_ERRORS: dict[str, type[QuicksilverError]] = {
    kind.code: kind for kind in (InvalidRequest, ContextTooLong, InvalidGrammar, EngineOverloaded)
}

# Content and (name, arguments) of every tool call -> why they are invalid, or None.
FindFault = Callable[[str, Sequence[tuple[str, str]]], str | None]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How the tokens of one answer are turned into text."""

    stop: tuple[str, ...] = ()
    tool_names: frozenset[str] = frozenset()
    # Those of `tool_names` that take plain text instead of JSON arguments.
    text_tools: frozenset[str] = frozenset()
    # The text between such a call and its closing tag.
    call_padding: str = ""
    # The prompt ends inside the reasoning channel.
    opens_thinking: bool = False
    # The answer ends after this many tool calls.
    max_calls: int | None = None
    # The answer is text only: tags in it are text.
    is_plain: bool = False
    # Of a plain answer: text that the model repeats from the end of the prompt and that is not part of the answer.
    lead: str = ""
    # Validates an answer that ended by itself.
    find_fault: FindFault | None = None

    def open_source(self, tokenizer: Tokenizer) -> ChannelSource:
        if self.is_plain:
            return PlainText(tokenizer, self.stop, self.lead)
        return Channels(
            tokenizer,
            stop=self.stop,
            tool_names=self.tool_names,
            opens_thinking=self.opens_thinking,
            text_tools=self.text_tools,
            call_padding=self.call_padding,
        )


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Committed text."""

    deltas: tuple[ChannelDelta, ...]
    # Log-probabilities of the content tokens only.
    logprobs: tuple[TokenLogprob, ...] = ()
    num_tokens: int = 0
    # Prompt tokens found in the prefix cache; None until the engine reports them.
    cached_tokens: int | None = None
    # Content tokens with their texts, for requests with frames.
    committed: tuple[CommittedToken, ...] = ()
    # Tokens of all channels, tags included.
    token_ids: tuple[int, ...] = ()
    # Seconds that the request waited in the engine for its first forward.
    queued_s: float = field(default=0.0, compare=False)

    def add_to(self, usage: Usage) -> Usage:
        """The usage of an answer with this text after it."""
        cached = usage.cached_tokens if self.cached_tokens is None else self.cached_tokens
        return replace(usage, cached_tokens=cached, completion_tokens=usage.completion_tokens + self.num_tokens)


@dataclass(frozen=True, slots=True)
class FrameSnapshot:
    """The whole content with the canvas of `frame`; `text` replaces the text of the snapshot before."""

    text: str
    frame: Frame
    # Code points at the beginning of `text` that will not change.
    num_committed: int
    # Texts of the leading canvas positions that are part of `text`.
    position_texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """How an answer ended, and what it used."""

    reason: FinishReason = FinishReason.STOP
    usage: Usage = field(default_factory=Usage)
    num_reasoning: int = 0
    num_calls: int = 0
    # The stop string that ended the answer.
    stop: str | None = None
    # Log-probability of the token that ended the answer, if the request asks for log-probabilities.
    stop_logprob: TokenLogprob | None = None
    # Probability of each label, for an answer that was chosen from labels.
    probabilities: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """The log-probabilities of the prompt's tokens; the first token has none. Comes before every other piece."""

    logprobs: tuple[TokenLogprob | None, ...]


@dataclass(frozen=True, slots=True)
class Decided:
    """The log-probabilities of the options of each question."""

    logprobs: tuple[tuple[float, ...], ...]


AnswerPiece = ScoredPrompt | Decided | TextDelta | FrameSnapshot | Finished


@dataclass(slots=True)
class CollectedCall:
    name: str
    arguments: str = ""


@dataclass(slots=True)
class CollectedAnswer:
    """The pieces of one answer joined."""

    content: str = ""
    reasoning: str = ""
    calls: list[CollectedCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finished: Finished = field(default_factory=Finished)
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    decided: tuple[tuple[float, ...], ...] = ()
    # When the first text came, on the clock `time.perf_counter`.
    first_at: float | None = field(default=None, compare=False)

    def add(self, piece: AnswerPiece) -> None:
        if isinstance(piece, Finished):
            self.finished = piece
        elif isinstance(piece, ScoredPrompt):
            self.prompt_logprobs = piece.logprobs
        elif isinstance(piece, Decided):
            self.decided = piece.logprobs
        elif isinstance(piece, TextDelta):
            self.first_at = self.first_at or time.perf_counter()
            self.logprobs += piece.logprobs
            self.token_ids += piece.token_ids
            for delta in piece.deltas:
                self._add_delta(delta)

    def as_pieces(self) -> list[AnswerPiece]:
        """The same answer as if it had been committed in one step."""
        deltas = [ChannelDelta(Channel.REASONING, self.reasoning)] if self.reasoning else []
        deltas += [ChannelDelta(Channel.CONTENT, self.content)] if self.content else []
        deltas += [ChannelDelta(Channel.TOOL_CALL, c.arguments, i, c.name) for i, c in enumerate(self.calls)]
        return [TextDelta(tuple(deltas), tuple(self.logprobs), token_ids=tuple(self.token_ids)), self.finished]

    def _add_delta(self, delta: ChannelDelta) -> None:
        if delta.channel is Channel.CONTENT:
            self.content += delta.text
        elif delta.channel is Channel.REASONING:
            self.reasoning += delta.text
        else:
            if delta.index == len(self.calls):
                self.calls.append(CollectedCall(delta.name))
            self.calls[delta.index].arguments += delta.text


class ChannelSource(Protocol):
    """Splits tokens into channels: `Channels`, or `PlainText`."""

    token_channels: list[Channel]

    @property
    def stopped(self) -> str | None: ...

    @property
    def channel(self) -> Channel: ...

    def push(self, ids: Iterable[int]) -> list[ChannelDelta]: ...

    def finish(self) -> list[ChannelDelta]: ...


class PlainText:
    """All tokens are content. The answer begins after `lead`, which the model repeats from the prompt."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], lead: str = "") -> None:
        self._text = Detokenizer(tokenizer, stop, lead)
        self.token_channels: list[Channel] = []
        self.channel = Channel.CONTENT

    @property
    def stopped(self) -> str | None:
        return self._text.stopped

    def push(self, ids: Iterable[int]) -> list[ChannelDelta]:
        text = self._text.push(ids)
        # Tokens after a stop string are not read, so they are not counted either.
        self.token_channels = [Channel.CONTENT] * len(self._text.token_offsets)
        return [ChannelDelta(Channel.CONTENT, text)] if text else []

    def finish(self) -> list[ChannelDelta]:
        text = self._text.finish()
        return [ChannelDelta(Channel.CONTENT, text)] if text else []


class AnswerReader:
    """Reads the events of one request; synchronous, so that tests can try any order of events."""

    def __init__(self, request: Request, options: ReadOptions, tokenizer: Tokenizer) -> None:
        self._options = options
        self._source = options.open_source(tokenizer)
        self._usage = Usage(prompt_tokens=len(request.prompt_ids))
        self._content = ""
        self._num_tokens = 0
        self._calls: list[tuple[str, str]] = []
        self._has_too_many_calls = False
        self._canvas = CanvasText(tokenizer) if request.wants_frames else None
        self.is_finished = False

    def read(self, event: Event) -> list[AnswerPiece]:
        if isinstance(event, Frame):
            return [self._snapshot(event)]
        if event.finish is FinishReason.ERROR:
            raise _failure(event)
        if event.finish is FinishReason.ABORT:
            # This side aborts by closing the stream, so an abort event comes from elsewhere.
            raise EngineUnavailable("The engine gave this answer up.", code="aborted")
        self._usage = event.usage or self._usage
        text = self._text_delta(event)
        pieces: list[AnswerPiece] = [text] if text.deltas or text.num_tokens else []
        return [*pieces, self._finish(event)] if self._must_finish(event) else pieces

    def _snapshot(self, frame: Frame) -> FrameSnapshot:
        if self._canvas is None or self._source.channel is not Channel.CONTENT:
            return FrameSnapshot(self._content, frame, len(self._content), ())
        text = self._content + self._canvas.preview(frame)
        return FrameSnapshot(text, frame, len(self._content), self._canvas.position_texts(frame))

    def _text_delta(self, event: Delta) -> TextDelta:
        before = len(self._source.token_channels)
        deltas = self._source.push(event.token_ids)
        if event.finish is not None:
            deltas += self._source.finish()
        kept = self._source.token_channels[before:]
        content = "".join(delta.text for delta in deltas if delta.channel is Channel.CONTENT)
        self._content += content
        committed = self._canvas.commit(event, kept, content) if self._canvas else ()
        self._num_tokens += len(kept)
        kept_deltas = self._within_calls(deltas)
        self._collect_calls(kept_deltas)
        logprobs = zip(event.logprobs, kept, strict=False)
        of_content = tuple(logprob for logprob, channel in logprobs if channel is Channel.CONTENT)
        usage, ids = event.usage, event.token_ids[: len(kept)]
        cached, queued_s = (usage.cached_tokens, usage.queued_s) if usage else (None, 0.0)
        return TextDelta(tuple(kept_deltas), of_content, len(kept), cached, committed, ids, queued_s)

    def _within_calls(self, deltas: list[ChannelDelta]) -> list[ChannelDelta]:
        limit = self._options.max_calls
        within = [d for d in deltas if limit is None or d.channel is not Channel.TOOL_CALL or d.index < limit]
        self._has_too_many_calls |= len(within) < len(deltas)
        return within

    def _collect_calls(self, deltas: list[ChannelDelta]) -> None:
        for delta in deltas:
            if delta.channel is Channel.TOOL_CALL:
                if delta.index == len(self._calls):
                    self._calls.append((delta.name, ""))
                name, arguments = self._calls[delta.index]
                self._calls[delta.index] = (name, arguments + delta.text)

    def _must_finish(self, event: Delta) -> bool:
        return event.finish is not None or self._source.stopped is not None or self._has_too_many_calls

    def _finish(self, event: Delta) -> Finished:
        self.is_finished = True
        is_cut = event.finish is FinishReason.LENGTH and self._source.stopped is None
        num_reasoning = sum(channel is Channel.REASONING for channel in self._source.token_channels)
        if event.finish is FinishReason.STOP and self._source.stopped is None:
            self._require_valid()
        usage = replace(self._usage, completion_tokens=self._num_tokens)
        reason = FinishReason.LENGTH if is_cut else FinishReason.STOP
        stop_logprob = event.logprobs[-1] if len(event.logprobs) > len(event.token_ids) else None
        return Finished(reason, usage, num_reasoning, len(self._calls), self._source.stopped, stop_logprob)

    def _require_valid(self) -> None:
        find_fault = self._options.find_fault
        fault = find_fault(self._content, self._calls) if find_fault else None
        if fault is not None:
            raise OutputInvalid(f"The answer does not satisfy the schema: {fault[:MAX_FAULT_CHARS]}")


def _failure(event: Delta) -> QuicksilverError:
    code, _, message = (event.error or "row_failed: this request failed").partition(": ")
    return KNOWN_ERRORS.get(code, RowFailed)(message or code, code=code)
