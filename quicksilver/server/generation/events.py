"""A Job's pieces -> the bytes of a stream in OpenAI's dialect: chunks, usage when asked for, [DONE].

An error inside the stream is a chunk with an `error` object, and nothing follows it.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from quicksilver.errors import QuicksilverError
from quicksilver.server.generation.answer import Ended, Piece
from quicksilver.server.generation.job import Job
from quicksilver.server.http.errors import envelope, internal_error
from quicksilver.server.http.sse import DONE, data_event

log = logging.getLogger("quicksilver.server")

UsageChunk = Callable[[Sequence[Ended]], Mapping[str, Any]]


class Teller(Protocol):
    """Turns the pieces of one answer into its chunks."""

    def tell(self, piece: Piece) -> Iterable[Mapping[str, Any]]: ...


class ReplyTeller(Protocol):
    """Turns all of a reply into its chunks; `index` is the number of the answer a piece belongs to."""

    def begin(self) -> Iterable[Mapping[str, Any]]: ...

    def tell(self, index: int, piece: Piece) -> Iterable[Mapping[str, Any]]: ...

    def end(self) -> Iterable[Mapping[str, Any]]: ...


class SideBySide:
    """A reply whose answers are told independently of each other."""

    def __init__(self, tellers: Sequence[Teller]) -> None:
        self._tellers = tellers

    def begin(self) -> Iterable[Mapping[str, Any]]:
        return ()

    def tell(self, index: int, piece: Piece) -> Iterable[Mapping[str, Any]]:
        return self._tellers[index].tell(piece)

    def end(self) -> Iterable[Mapping[str, Any]]:
        return ()


async def reply_events(job: Job, teller: ReplyTeller, usage: UsageChunk | None) -> AsyncGenerator[bytes]:
    for chunk in teller.begin():
        yield data_event(chunk)
    try:
        async for index, piece in job.delivered_pieces():
            for chunk in teller.tell(index, piece):
                yield data_event(chunk)
    except Exception as error:
        yield data_event(envelope(as_refusal(error)))
        return
    for chunk in teller.end():
        yield data_event(chunk)
    if usage is not None:
        yield data_event(usage(job.ended))
    yield DONE


def as_refusal(error: Exception) -> QuicksilverError:
    """What may be said of an error in a stream; one that nobody foresaw is logged without its message."""
    if isinstance(error, QuicksilverError):
        return error
    place = "".join(traceback.format_tb(error.__traceback__))
    log.error("unforeseen %s in a stream\n%s", type(error).__name__, place)
    return internal_error()
