"""Committed tokens -> reasoning | content | tool call, as they come."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from quicksilver.text.tokenizer import Tokenizer


class Channel(StrEnum):
    REASONING = "reasoning"
    CONTENT = "content"
    TOOL_CALL = "tool_call"


@dataclass(frozen=True, slots=True)
class ChannelDelta:
    """A piece of one channel. Of a tool call: `index` counts calls from 0, the first piece has its `name`, `text` is
    the next piece of its arguments as JSON text."""

    channel: Channel
    text: str
    index: int = 0
    name: str = ""


class Channels:
    """The splitter of one answer. Stop strings are looked for in content only; `stopped` is the one found."""

    stopped: str | None
    token_channels: list[Channel]
    """For each token pushed, the channel it went to; tags belong to the channel they open or close."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        tool_names: Collection[str] = (),
        opens_thinking: bool = False,
    ) -> None:
        raise RuntimeError("skeleton")

    def push(self, ids: Iterable[int]) -> list[ChannelDelta]:
        raise RuntimeError("skeleton")

    def push_text(self, text: str) -> list[ChannelDelta]:
        raise RuntimeError("skeleton")

    def finish(self) -> list[ChannelDelta]:
        raise RuntimeError("skeleton")
