"""Messages between an engine worker and its client: msgpack with a schema, prefixed by their length. No pickle.

The client sends commands, the worker sends replies. Every message is a tagged struct; if bytes do not decode as one,
the connection is closed. The worker sends `Heartbeat` every `HEARTBEAT_S` seconds after `Ready`.
"""

from __future__ import annotations

import asyncio

import msgspec

from quicksilver import errors
from quicksilver.adapters import AdapterInfo, AdapterRef
from quicksilver.core import Delta, EngineInfo, EngineStats, Frame, Request, ScoreRequest, Scores

MAX_MESSAGE_BYTES = 64 << 20
HEARTBEAT_S = 0.5


class Submit(msgspec.Struct, tag=True):
    request: Request


class Score(msgspec.Struct, tag=True):
    request: ScoreRequest


class Abort(msgspec.Struct, tag=True):
    """Ends a Submit or a Score. No reply follows."""

    request_id: str


class AskStats(msgspec.Struct, tag=True):
    ticket: str


class LoadAdapter(msgspec.Struct, tag=True):
    ticket: str
    adapter: AdapterRef


class UnloadAdapter(msgspec.Struct, tag=True):
    ticket: str
    adapter_id: str


class ListAdapters(msgspec.Struct, tag=True):
    ticket: str


class Ready(msgspec.Struct, tag=True):
    info: EngineInfo


class Heartbeat(msgspec.Struct, tag=True):
    stats: EngineStats
    # Seconds since the running step began; 0 if the engine is idle.
    step_s: float
    # Open requests are finished, and the client should send no further ones.
    is_draining: bool = False


class GotEvents(msgspec.Struct, tag=True):
    """Events of all requests of this connection since the last message. Frames follow the deltas of their request."""

    deltas: list[Delta]
    frames: list[Frame] = []


class GotScores(msgspec.Struct, tag=True):
    request_id: str
    scores: Scores


class GotStats(msgspec.Struct, tag=True):
    ticket: str
    stats: EngineStats


class GotAdapters(msgspec.Struct, tag=True):
    """The answer to LoadAdapter (that adapter), UnloadAdapter (none, and whether it was unloaded) and ListAdapters."""

    ticket: str
    adapters: list[AdapterInfo]
    is_unloaded: bool = False


class Refused(msgspec.Struct, tag=True):
    """The error of one command: the name of its class, and its fields."""

    request_id: str
    kind: str
    message: str
    param: str | None
    code: str
    retry_after_s: float = 1.0


AdapterCommand = LoadAdapter | UnloadAdapter | ListAdapters
Command = Submit | Score | Abort | AskStats | AdapterCommand
Reply = Ready | Heartbeat | GotEvents | GotScores | GotStats | GotAdapters | Refused

_encoder = msgspec.msgpack.Encoder()
command_decoder = msgspec.msgpack.Decoder(Command)
reply_decoder = msgspec.msgpack.Decoder(Reply)


def pack(message: msgspec.Struct) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "little") + body


async def read_body(reader: asyncio.StreamReader) -> bytes | None:
    """The bytes of the next message; None if the connection ended or the length is over the limit."""
    try:
        length = int.from_bytes(await reader.readexactly(4), "little")
        return await reader.readexactly(length) if length <= MAX_MESSAGE_BYTES else None
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def refuse(request_id: str, error: Exception) -> Refused:
    if isinstance(error, errors.QuicksilverError):
        retry_after_s = getattr(error, "retry_after_s", 1.0)
        return Refused(request_id, type(error).__name__, error.message, error.param, error.code, retry_after_s)
    return Refused(request_id, "RowFailed", type(error).__name__, None, errors.RowFailed.code)


def to_error(refused: Refused) -> errors.QuicksilverError:
    """The error that the worker raised; an unknown class becomes QuicksilverError."""
    kind = getattr(errors, refused.kind, errors.QuicksilverError)
    if not (isinstance(kind, type) and issubclass(kind, errors.QuicksilverError)):
        kind = errors.QuicksilverError
    error = kind(refused.message)
    error.param, error.code = refused.param, refused.code
    if isinstance(error, errors.Unavailable):
        error.retry_after_s = refused.retry_after_s
    return error
