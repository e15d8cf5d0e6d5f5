"""Messages between an API process and an engine replica: the frames of `worker.protocol`, as bytes.

Ray pickles what it carries between its own processes; it is handed bytes only, which are decoded here with a schema.
"""

from __future__ import annotations

import msgspec

from quicksilver.core import EngineInfo, EngineStats
from quicksilver.worker import protocol

# The replica sends a heartbeat if a stream has no event for this long. A replica that sends nothing for `SILENT_S` is
# treated as dead: Ray takes longer to notice that a machine is gone.
HEARTBEAT_S, SILENT_S = 1.0, 5.0


class ReplicaInfo(msgspec.Struct):
    """Facts about a replica, and its figures at the time of the call."""

    replica: str
    info: EngineInfo
    stats: EngineStats


class Accepted(msgspec.Struct, tag=True):
    """The first reply of a stream: which replica answers, with which model."""

    replica: str
    fingerprint: str


class ReplicaConfig(msgspec.Struct):
    """What a replica is started with: the arguments of Python for its worker."""

    arguments: list[str]


StreamReply = Accepted | protocol.Reply
_stream_decoder = msgspec.msgpack.Decoder(StreamReply)
_info_decoder = msgspec.msgpack.Decoder(ReplicaInfo)
_config_decoder = msgspec.msgpack.Decoder(ReplicaConfig)


def encode(message: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_info(body: bytes) -> ReplicaInfo:
    return _info_decoder.decode(body)


def decode_config(body: bytes) -> ReplicaConfig:
    return _config_decoder.decode(body)


def decode_command(body: bytes) -> protocol.Command:
    command: protocol.Command = protocol.command_decoder.decode(body)
    return command


def decode_reply(body: bytes) -> StreamReply:
    reply: StreamReply = _stream_decoder.decode(body)
    return reply
