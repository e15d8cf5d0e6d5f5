"""ReplicaListener: the port of a replica. API processes send it the commands of `worker.protocol` after a handshake."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from quicksilver.cluster.ray import handshake
from quicksilver.core import (
    EngineClient,
    EngineHealth,
    EngineInfo,
    EngineState,
    EngineStats,
    Request,
    ScoreRequest,
    Scores,
)
from quicksilver.errors import EngineOverloaded
from quicksilver.worker import protocol
from quicksilver.worker.server import Connection

# Connections whose handshake has not ended; further ones are closed at once.
MAX_STRANGERS = 64
# Seconds after which an API process that acknowledges nothing is taken for lost, with its machine or network.
GONE_S = 10.0
# Seconds between the heartbeat that announces the drain and the end of the replica.
NOTICE_S = 2 * protocol.HEARTBEAT_S


class RelayedEngine:
    """An engine client with what a Connection needs of an AsyncEngine. It counts the requests of all connections.
    `replaced` is called if another model was loaded: the connections have announced the first one."""

    def __init__(self, engine: EngineClient, max_open: int, replaced: Callable[[], None]) -> None:
        self._engine = engine
        self._max_open = max_open
        self._fingerprint = engine.info.fingerprint
        self._replaced = replaced
        self.num_open = 0
        self.is_draining = False

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def health(self) -> EngineHealth:
        health = self._engine.health()
        return replace(health, state=EngineState.CLOSED) if self.is_draining else health

    async def stats(self) -> EngineStats:
        return self._engine.health().stats

    async def submit(self, request: Request, sink: Any) -> None:
        """Returns when the request has ended. Cancelled if it is aborted."""
        self._begin()
        try:
            async with aclosing(self._engine.stream(request)) as events:
                async for event in events:
                    sink.take([(request.id, event)])
        finally:
            self.num_open -= 1

    def abort(self, request_id: str) -> None:
        """Nothing is left to do: the cancellation of `submit` ends the request."""

    async def score(self, request: ScoreRequest) -> Scores:
        self._begin()
        try:
            return await self._engine.score(request)
        finally:
            self.num_open -= 1

    def _begin(self) -> None:
        if self.num_open >= self._max_open:
            raise EngineOverloaded("the replica is full; retry later")
        if self._fingerprint != self.info.fingerprint:
            self._fingerprint = self.info.fingerprint
            self._replaced()
        self.num_open += 1


class ReplicaListener:
    """`open`, then `drain`."""

    def __init__(self, engine: EngineClient, max_open: int) -> None:
        self.engine = RelayedEngine(engine, max_open, self._close_connections)
        self.secret = secrets.token_bytes(handshake.SECRET_BYTES)
        self.port = 0
        self._server: asyncio.Server | None = None
        self._num_strangers = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self, host: str) -> ReplicaListener:
        """Listens on a free port of this address."""
        self._server = await asyncio.start_server(self._accept, host, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def drain(self) -> None:
        """Returns when the open requests have ended; API processes learn from heartbeats to send no further ones."""
        self.engine.is_draining = True
        await asyncio.sleep(NOTICE_S)
        while self.engine.num_open:
            await asyncio.sleep(0.1)
        if self._server is not None:
            self._server.close()
        self._close_connections()

    def _close_connections(self) -> None:
        for writer in self._writers:
            writer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * GONE_S))
        self._writers.add(writer)
        try:
            if await self._is_known(reader, writer):
                await Connection(cast(Any, self.engine), writer).run(reader)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _is_known(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self._num_strangers += 1
        try:
            return self._num_strangers <= MAX_STRANGERS and await handshake.accept(reader, writer, self.secret)
        finally:
            self._num_strangers -= 1
