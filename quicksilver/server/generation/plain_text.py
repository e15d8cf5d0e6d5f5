"""PlainText: the reader for answers that are text and nothing else, so that a tag in code stays code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from quicksilver.text.channels import Channel, ChannelDelta
from quicksilver.text.detokenize import Detokenizer
from quicksilver.text.tokenizer import Tokenizer


class TextSource(Protocol):
    """What an answer is read through: `text.Channels`, or PlainText."""

    token_channels: list[Channel]

    @property
    def stopped(self) -> str | None: ...

    @property
    def channel(self) -> Channel: ...

    def push(self, ids: Iterable[int]) -> list[ChannelDelta]: ...

    def finish(self) -> list[ChannelDelta]: ...


class PlainText:
    """`lead` is what the client's own text ended with and the model says again: the answer begins behind it."""

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
