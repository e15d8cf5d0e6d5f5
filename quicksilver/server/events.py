"""A Job's pieces -> the bytes of a stream in OpenAI's dialect: chunks, usage when asked for, [DONE].

An error inside the stream is a chunk with an `error` object, and nothing follows it.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from quicksilver.errors import QuicksilverError
from quicksilver.server.answer import Ended, Piece
from quicksilver.server.envelope import envelope, internal_error
from quicksilver.server.job import Job
from quicksilver.server.sse import DONE, data_event

log = logging.getLogger("quicksilver.server")

UsageChunk = Callable[[Sequence[Ended]], Mapping[str, Any]]


class Teller(Protocol):
    """Turns the pieces of one answer into its chunks."""

    def tell(self, piece: Piece) -> Iterable[Mapping[str, Any]]: ...


async def reply_events(job: Job, tellers: Sequence[Teller], usage: UsageChunk | None) -> AsyncGenerator[bytes]:
    try:
        async for index, piece in job.delivered_pieces():
            for chunk in tellers[index].tell(piece):
                yield data_event(chunk)
    except Exception as error:
        yield data_event(envelope(as_refusal(error)))
        return
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
