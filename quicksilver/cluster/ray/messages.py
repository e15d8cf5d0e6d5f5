"""What an API process and a replica tell each other through Ray: bytes that are decoded here with a schema.

Ray pickles what it carries between its own processes; it is handed bytes only.
"""

from __future__ import annotations

import msgspec

# A replica that sends nothing for this long is treated as dead: Ray takes longer to notice that a machine is gone.
SILENT_S = 5.0


class ReplicaInfo(msgspec.Struct):
    """Where a replica listens, and what it asks of its clients."""

    replica: str
    host: str
    port: int
    secret: bytes
    # Requests that one API process may have open.
    max_open: int


class ReplicaConfig(msgspec.Struct):
    """What a replica is started with: the arguments of Python for its worker, and the requests that it takes."""

    arguments: list[str]
    max_open: int = 256


_info_decoder = msgspec.msgpack.Decoder(ReplicaInfo)
_config_decoder = msgspec.msgpack.Decoder(ReplicaConfig)


def encode(message: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_info(body: bytes) -> ReplicaInfo:
    return _info_decoder.decode(body)


def decode_config(body: bytes) -> ReplicaConfig:
    return _config_decoder.decode(body)
