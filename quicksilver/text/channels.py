"""Splits a stream of tokens into reasoning, content and tool calls.

A state machine over tags, which are special tokens if the tokenizer has them and plain text if not. Text that may be
the start of a tag is held back. Invariant: the result does not depend on how the stream was cut, and no text is lost:
a malformed call becomes content. Deltas are whole code points, without text that a stop string may still remove.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from quicksilver.text.special_tokens import CHANNEL_NAME, CHANNEL_OPEN, THINK_CLOSE, THINK_OPEN, TOOL_CLOSE, TOOL_OPEN
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.text.tool_calls import CallParser


class Scanner:
    """Searches a stream for the first of several strings, and holds back text that may be the start of one."""

    def __init__(self, needles: Sequence[str]) -> None:
        self._needles = tuple(needle for needle in needles if needle)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None, str]:
        """Text that is certain now, the string found if any, and what followed it in this push."""
        buffer = self._held + text
        hits = [(at + len(n), at, n) for n in self._needles if (at := buffer.find(n)) >= 0]
        if hits:
            end, start, needle = min(hits)
            self._held = ""
            return buffer[:start], needle, buffer[end:]
        kept = self._open_suffix(buffer)
        self._held = buffer[len(buffer) - kept :]
        return buffer[: len(buffer) - kept], None, ""

    def flush(self) -> str:
        """What was held back: the stream has ended, so it began nothing."""
        held, self._held = self._held, ""
        return held

    def _open_suffix(self, buffer: str) -> int:
        """Length of the longest end of `buffer` that is a beginning of some needle."""
        longest = max((len(n) for n in self._needles), default=1) - 1
        for size in range(min(longest, len(buffer)), 0, -1):
            tail = buffer[-size:]
            if any(n.startswith(tail) for n in self._needles):
                return size
        return 0


class Detokenizer:
    """Text of one answer as its tokens are committed. `stop` strings end it; the one that did is in `stopped`. Of an
    answer that begins with `lead`, or ends within it, that part is left out, and no stop string is looked for in it."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), lead: str = "") -> None:
        self._tokenizer = tokenizer
        self._lead, self._led = lead, ""
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._scanner = Scanner(stop)
        self._num_chars = 0
        self.stopped: str | None = None
        # For each token pushed, the index in the text, in code points, at which its first character is or will be.
        self.token_offsets: list[int] = []

    def push(self, ids: Iterable[int]) -> str:
        """The text that became certain; empty once a stop string was found."""
        return "".join(map(self._push_one, ids))

    def finish(self) -> str:
        """The rest: held-back text, and U+FFFD for a code point the model left unfinished."""
        if self.stopped is not None:
            return ""
        return self._release(self._utf8.decode(b"", final=True)) + self._scanner.flush()

    def _push_one(self, token_id: int) -> str:
        if self.stopped is not None:
            return ""
        self.token_offsets.append(self._num_chars)
        text = self._utf8.decode(self._tokenizer.token_bytes(token_id))
        self._num_chars += len(text)
        return self._release(text)

    def _release(self, text: str) -> str:
        certain, self.stopped, _ = self._scanner.push(self._without_lead(text))
        return certain

    def _without_lead(self, text: str) -> str:
        if not self._lead:
            return text
        self._led += text
        if len(self._led) < len(self._lead) and self._lead.startswith(self._led):
            return ""
        text, lead, self._led, self._lead = self._led, self._lead, "", ""
        return text.removeprefix(lead)


class Channel(StrEnum):
    REASONING = "reasoning"
    CONTENT = "content"
    TOOL_CALL = "tool_call"


@dataclass(frozen=True, slots=True)
class ChannelDelta:
    """A piece of one channel. Of a tool call: `index` counts calls from 0, the first piece has the `name`, `text` is
    the next piece of its arguments as JSON text."""

    channel: Channel
    text: str
    index: int = 0
    name: str = ""


class _Tag(StrEnum):
    """Each tag by its plain-text spelling."""

    THINK_OPEN = THINK_OPEN
    THINK_CLOSE = THINK_CLOSE
    TOOL_OPEN = TOOL_OPEN
    TOOL_CLOSE = TOOL_CLOSE


_CHANNEL_OF = {
    _Tag.THINK_OPEN: Channel.REASONING,
    _Tag.THINK_CLOSE: Channel.REASONING,
    _Tag.TOOL_OPEN: Channel.TOOL_CALL,
    _Tag.TOOL_CLOSE: Channel.TOOL_CALL,
}


class _Deltas:
    """The deltas: without the line breaks that separate channels, and up to a stop string in content."""

    def __init__(self, stop: Sequence[str], tool_names: Collection[str]) -> None:
        self._stop = Scanner(stop)
        self._holds_blank = self._is_blank = bool(tool_names)
        self._blank = ""
        self._drops_newlines = False
        # The first line of the reasoning that is not part of it, and how much of it was read.
        self._name, self._held_name = "", ""
        self._has_calls = False
        self._out: list[ChannelDelta] = []
        self.stopped: str | None = None

    def write(self, channel: Channel, text: str) -> None:
        if self._name:
            text = self._after_name(text)
        if self._drops_newlines:
            text = text.lstrip("\n")
            self._drops_newlines = not text
        if channel is Channel.CONTENT:
            self._write_content(text)
        else:
            self.add(ChannelDelta(channel, text))

    def add(self, delta: ChannelDelta) -> None:
        if not delta.text and not delta.name:
            return
        self._has_calls = self._has_calls or delta.channel is Channel.TOOL_CALL
        last = self._out[-1] if self._out else None
        if last and (last.channel, last.index) == (delta.channel, delta.index) and not delta.name:
            self._out[-1] = replace(last, text=last.text + delta.text)
        else:
            self._out.append(delta)

    def turn_thinking(self, name: str = "") -> None:
        """Reasoning begins or ends here: line breaks that follow belong to neither side, nor does a line `name`."""
        self._end_name()
        self.begin_call()
        self._drops_newlines, self._name = True, name

    def _after_name(self, text: str) -> str:
        """`text` without the name, which may come in pieces."""
        held = self._held_name + text
        if self._name.startswith(held) and held != self._name:
            self._held_name = held
            return ""
        name, self._name, self._held_name = self._name, "", ""
        return held.removeprefix(name)

    def _end_name(self) -> None:
        """Nothing follows: an incomplete name is reasoning, unless only its line break is missing."""
        held, name, self._name, self._held_name = self._held_name, self._name, "", ""
        if held and held != name.rstrip("\n"):
            self.add(ChannelDelta(Channel.REASONING, held))

    def begin_call(self) -> None:
        """Content ends here; where it was blank it was no answer, only space before a tag."""
        self._blank = ""
        self.flush()

    def flush(self) -> None:
        self._end_name()
        blank, self._blank = "" if self._has_calls else self._blank, ""
        if self.stopped is None:
            certain, self.stopped, _ = self._stop.push(blank)
            self.add(ChannelDelta(Channel.CONTENT, certain + ("" if self.stopped else self._stop.flush())))
        self._is_blank = self._holds_blank

    def take(self) -> list[ChannelDelta]:
        out, self._out = self._out, []
        return out

    def _write_content(self, text: str) -> None:
        if self._is_blank and not text.strip():
            self._blank += text
            return
        self._is_blank = False
        text, self._blank = self._blank + text, ""
        if self.stopped is None:
            certain, self.stopped, _ = self._stop.push(text)
            self.add(ChannelDelta(Channel.CONTENT, certain))


class Channels:
    """The splitter of one answer.

    Stop strings are looked for in content only, so that thinking cannot end an answer before it begins; the one found
    is in `stopped`. Tags of tool calls count only where `tool_names` offers tools.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        tool_names: Collection[str] = (),
        opens_thinking: bool = False,
        text_tools: Collection[str] = (),
        call_padding: str = "",
    ) -> None:
        self._tokenizer = tokenizer
        self._tool_names = tool_names
        self._text_tools = text_tools
        self._call_padding = call_padding
        self._tag_ids, texts = _find_tags(tokenizer, tool_names)
        self._call_close = TOOL_CLOSE if _Tag.TOOL_CLOSE in texts else ""
        self._tags = Scanner(texts)
        self._channel_name = ""
        self._deltas = _Deltas(stop, tool_names)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._call: CallParser | None = None
        self._is_thinking = False
        self.num_calls = 0
        # For each token pushed, the channel it went to; tags belong to the channel they open or close.
        self.token_channels: list[Channel] = []
        if opens_thinking:
            self._turn(_Tag.THINK_OPEN)
        # After the prompt: a channel that the prompt opens is named there.
        self._channel_name = _channel_name(tokenizer)

    @property
    def stopped(self) -> str | None:
        return self._deltas.stopped

    @property
    def channel(self) -> Channel:
        """Where the next text goes."""
        if self._call is not None:
            return Channel.TOOL_CALL
        return Channel.REASONING if self._is_thinking else Channel.CONTENT

    def push(self, ids: Iterable[int]) -> list[ChannelDelta]:
        for token_id in ids:
            if self.stopped is None:
                self._push_one(token_id)
        return self._deltas.take()

    def finish(self) -> list[ChannelDelta]:
        """Whatever was held back; the splitter is spent."""
        self._settle()
        self._deltas.flush()
        return self._deltas.take()

    def _push_one(self, token_id: int) -> None:
        tag = self._tag_ids.get(token_id)
        self.token_channels.append(_CHANNEL_OF[tag] if tag else self.channel)
        if tag is None:
            self._route(self._utf8.decode(self._tokenizer.token_bytes(token_id)))
        else:
            self._settle()
            self._turn(tag)

    def _settle(self) -> None:
        """Nothing can be added to what was held back: a tag token or the end has come."""
        self._route(self._utf8.decode(b"", final=True))
        self._utf8.reset()
        if self._call is None:
            self._deltas.write(self.channel, self._tags.flush())
        self._end_call()

    def _route(self, text: str) -> None:
        """Text to the channel that is open, turning at every tag in it."""
        while text and self.stopped is None:
            if self._call is not None:
                text = self._call.push(text)
                self._stream_call(self._call)
                if self._call.is_closed:
                    self._end_call()
                continue
            certain, tag, text = self._tags.push(text)
            self._deltas.write(self.channel, certain)
            if tag is not None and not self._turn(_Tag(tag)):
                self._deltas.write(self.channel, tag)

    def _turn(self, tag: _Tag) -> bool:
        """Changes the channel; False if the tag has no meaning in the current one."""
        if tag is _Tag.TOOL_OPEN:
            self._deltas.begin_call()
            self._is_thinking = False
            self._call = CallParser(self._tool_names, self._call_close, self._text_tools, self._call_padding)
            return True
        if tag is _Tag.TOOL_CLOSE or (tag is _Tag.THINK_OPEN) is self._is_thinking:
            return False
        self._is_thinking = not self._is_thinking
        self._deltas.turn_thinking(self._channel_name if self._is_thinking else "")
        return True

    def _end_call(self) -> None:
        if (call := self._call) is None:
            return
        self._call = None
        rest = call.close()
        self._stream_call(call)
        if call.name:
            self.num_calls += 1
        elif self._call_close:
            rest = f"{TOOL_OPEN}{rest}{TOOL_CLOSE if call.is_closed else ''}"
        self._deltas.write(Channel.CONTENT, rest)

    def _stream_call(self, call: CallParser) -> None:
        name, arguments = call.take()
        self._deltas.add(ChannelDelta(Channel.TOOL_CALL, arguments, self.num_calls, name))


def _channel_name(tokenizer: Tokenizer) -> str:
    """The first line of a reasoning channel that names it; empty where reasoning has a tag of its own."""
    opens = tokenizer.special_tokens.get(CHANNEL_OPEN)
    return CHANNEL_NAME if opens is not None and opens == tokenizer.roles.think_open else ""


def _find_tags(tokenizer: Tokenizer, tool_names: Collection[str]) -> tuple[dict[int, _Tag], list[str]]:
    """Tags that are tokens, and the spelling of those that are not."""
    roles = tokenizer.roles
    found = {_Tag.THINK_OPEN: roles.think_open, _Tag.THINK_CLOSE: roles.think_close}
    if tool_names:
        found |= {_Tag.TOOL_OPEN: roles.tool_open, _Tag.TOOL_CLOSE: roles.tool_close}
    ids = {token_id: tag for tag, token_id in found.items() if token_id is not None}
    return ids, [tag.value for tag, token_id in found.items() if token_id is None]
