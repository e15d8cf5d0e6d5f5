"""Engine events -> pieces of one answer: committed text by channel, canvas snapshots, and how it ended.

Knows no wire format. Committed text only grows; a snapshot shows the whole content as it would read if the canvas
were kept as it stands, and is never committed by being shown.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from quicksilver.core import Delta, EngineClient, Event, FinishReason, Frame, Request, TokenLogprob, Usage
from quicksilver.errors import EngineUnavailable, OutputInvalid, RowFailed
from quicksilver.server.generation.canvas_text import Canvas, Settled
from quicksilver.server.generation.constraint import OutputCheck
from quicksilver.server.generation.plain_text import PlainText, TextSource
from quicksilver.text.channels import Channel, ChannelDelta, Channels
from quicksilver.text.tokenizer import Tokenizer

# Of the reason why an output is invalid: it may name keys that the model wrote.
MAX_FAULT_CHARS = 200


@dataclass(frozen=True, slots=True)
class Ask:
    """One answer to make, and how its tokens are to be read."""

    request: Request
    stop: tuple[str, ...] = ()
    tool_names: frozenset[str] = frozenset()
    opens_thinking: bool = False
    max_calls: int | None = None
    """Tool calls after which the answer ends by itself."""
    is_plain: bool = False
    """The answer is text alone: no channels are looked for in it."""
    lead: str = ""
    """Of a plain answer: what the model repeats from the end of the prompt, and the client does not want twice."""
    check: OutputCheck | None = None
    """What a finished answer must satisfy before it may be called finished."""

    def open_text(self, tokenizer: Tokenizer) -> TextSource:
        if self.is_plain:
            return PlainText(tokenizer, self.stop, self.lead)
        return Channels(tokenizer, stop=self.stop, tool_names=self.tool_names, opens_thinking=self.opens_thinking)


@dataclass(frozen=True, slots=True)
class Said:
    """Text that stays."""

    deltas: tuple[ChannelDelta, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of the content tokens only."""
    num_tokens: int = 0
    cached_tokens: int | None = None
    """Of the prompt, found in the prefix cache; None where the engine has not said so yet."""
    settled: tuple[Settled, ...] = ()
    """Content tokens with their texts, where snapshots are wanted."""
    token_ids: tuple[int, ...] = ()
    """The tokens themselves, of all channels, tags too."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The whole content with the canvas as it stands; `text` replaces what was shown before."""

    text: str
    frame: Frame
    num_committed: int
    """Code points at the beginning of `text` that stay."""
    spelled: tuple[str, ...]
    """The texts of the leading canvas positions that are part of `text`."""


@dataclass(frozen=True, slots=True)
class Ended:
    finish: FinishReason = FinishReason.STOP
    usage: Usage = field(default_factory=Usage)
    num_reasoning: int = 0
    num_calls: int = 0


Piece = Said | Shown | Ended


async def answer(engine: EngineClient, tokenizer: Tokenizer, ask: Ask) -> AsyncGenerator[Piece, None]:
    """The pieces of one answer, ending with `Ended`. Closing it, or a stop string, aborts the engine's request."""
    reader = AnswerReader(ask, tokenizer)
    async with aclosing(engine.stream(ask.request)) as events:  # type: ignore[type-var]
        async for event in events:
            for piece in reader.read(event):
                yield piece
            if reader.is_ended:
                return


class AnswerReader:
    """The state of one answer being read. Not asynchronous, so that any order of events can be tried on it."""

    def __init__(self, ask: Ask, tokenizer: Tokenizer) -> None:
        self._ask = ask
        self._tokenizer = tokenizer
        self._channels = ask.open_text(tokenizer)
        self._usage = Usage(prompt_tokens=len(ask.request.prompt_ids))
        self._content = ""
        self._num_tokens = 0
        self._calls: list[tuple[str, str]] = []
        self._has_too_many_calls = False
        self._canvas = Canvas(tokenizer)
        self.is_ended = False

    def read(self, event: Event) -> list[Piece]:
        if isinstance(event, Frame):
            return [self._show(event)]
        if event.finish is FinishReason.ERROR:
            raise _row_failed(event)
        if event.finish is FinishReason.ABORT:
            # We close the stream to abort; an abort that arrives as an event was somebody else's.
            raise EngineUnavailable("The engine gave this answer up.", code="aborted")
        self._usage = event.usage or self._usage
        said = self._say(event)
        pieces: list[Piece] = [said] if said.deltas or said.num_tokens else []
        return [*pieces, self._end(event)] if self._must_end(event) else pieces

    def _show(self, frame: Frame) -> Shown:
        if self._channels.channel is not Channel.CONTENT:
            return Shown(self._content, frame, len(self._content), ())
        text = self._content + self._canvas.preview(frame)
        return Shown(text, frame, len(self._content), self._canvas.spell(frame))

    def _say(self, event: Delta) -> Said:
        before = len(self._channels.token_channels)
        deltas = self._channels.push(event.token_ids)
        if event.finish is not None:
            deltas += self._channels.finish()
        kept = self._channels.token_channels[before:]
        content = "".join(delta.text for delta in deltas if delta.channel is Channel.CONTENT)
        self._content += content
        settled = self._canvas.commit(event, kept, content) if self._ask.request.wants_frames else ()
        self._num_tokens += len(kept)
        kept_deltas = self._within_calls(deltas)
        self._note_calls(kept_deltas)
        logprobs = zip(event.logprobs, kept, strict=False)
        wanted = tuple(logprob for logprob, channel in logprobs if channel is Channel.CONTENT)
        cached = event.usage.cached_tokens if event.usage else None
        return Said(tuple(kept_deltas), wanted, len(kept), cached, settled, event.token_ids[: len(kept)])

    def _within_calls(self, deltas: list[ChannelDelta]) -> list[ChannelDelta]:
        limit = self._ask.max_calls
        within = [d for d in deltas if limit is None or d.channel is not Channel.TOOL_CALL or d.index < limit]
        self._has_too_many_calls |= len(within) < len(deltas)
        return within

    def _note_calls(self, deltas: list[ChannelDelta]) -> None:
        for delta in deltas:
            if delta.channel is Channel.TOOL_CALL:
                if delta.index == len(self._calls):
                    self._calls.append((delta.name, ""))
                name, arguments = self._calls[delta.index]
                self._calls[delta.index] = (name, arguments + delta.text)

    def _must_end(self, event: Delta) -> bool:
        return event.finish is not None or self._channels.stopped is not None or self._has_too_many_calls

    def _end(self, event: Delta) -> Ended:
        self.is_ended = True
        is_cut = event.finish is FinishReason.LENGTH and self._channels.stopped is None
        num_reasoning = sum(channel is Channel.REASONING for channel in self._channels.token_channels)
        if event.finish is FinishReason.STOP and self._channels.stopped is None:
            self._check_output()
        usage = replace(self._usage, completion_tokens=self._num_tokens)
        return Ended(FinishReason.LENGTH if is_cut else FinishReason.STOP, usage, num_reasoning, len(self._calls))

    def _check_output(self) -> None:
        fault = self._ask.check.fault(self._content, self._calls) if self._ask.check else None
        if fault is not None:
            raise OutputInvalid(f"The answer does not satisfy the schema: {fault[:MAX_FAULT_CHARS]}")


def _row_failed(event: Delta) -> RowFailed:
    code, _, message = (event.error or "row_failed: this request failed").partition(": ")
    return RowFailed(message or code, code=code)
