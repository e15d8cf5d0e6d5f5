"""Answers as a whole: several streams as one, and one stream gathered up. The same pieces either way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from quicksilver.core import TokenLogprob
from quicksilver.server.generation.answer import Ended, Piece, Said
from quicksilver.text.channels import Channel, ChannelDelta

Item = TypeVar("Item")


@dataclass(slots=True)
class Call:
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Whole:
    """An answer while it is gathered, and then complete."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    ended: Ended = field(default_factory=Ended)

    def add(self, piece: Piece) -> None:
        if isinstance(piece, Ended):
            self.ended = piece
        elif isinstance(piece, Said):
            self.logprobs += piece.logprobs
            self.token_ids += piece.token_ids
            for delta in piece.deltas:
                self._add_delta(delta)

    def as_pieces(self) -> list[Piece]:
        """The same answer as if it had come in one step."""
        deltas = [ChannelDelta(Channel.REASONING, self.reasoning)] if self.reasoning else []
        deltas += [ChannelDelta(Channel.CONTENT, self.content)] if self.content else []
        deltas += [ChannelDelta(Channel.TOOL_CALL, c.arguments, i, c.name) for i, c in enumerate(self.calls)]
        return [Said(tuple(deltas), tuple(self.logprobs), token_ids=tuple(self.token_ids)), self.ended]

    def _add_delta(self, delta: ChannelDelta) -> None:
        if delta.channel is Channel.CONTENT:
            self.content += delta.text
        elif delta.channel is Channel.REASONING:
            self.reasoning += delta.text
        else:
            if delta.index == len(self.calls):
                self.calls.append(Call(delta.name))
            self.calls[delta.index].arguments += delta.text


async def merge(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[tuple[int, Item], None]:
    """Items as they come, each with the number of its stream. At most one item a stream waits here."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, Item] | Exception | None] = asyncio.Queue(maxsize=1)
    tasks = [asyncio.create_task(_feed(i, stream, queue)) for i, stream in enumerate(streams)]
    try:
        num_left = len(streams)
        while num_left:
            entry = await queue.get()
            if isinstance(entry, Exception):
                raise entry
            if entry is None:
                num_left -= 1
            else:
                yield entry
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _feed(
    index: int, stream: AsyncGenerator[Item, None], queue: asyncio.Queue[tuple[int, Item] | Exception | None]
) -> None:
    try:
        async with aclosing(stream):
            async for item in stream:
                await queue.put((index, item))
        await queue.put(None)
    except Exception as error:
        await queue.put(error)
