"""The control socket: the process that owns the workers sends API processes the address of each model's worker.

API processes connect to the workers themselves. Over this socket they ask for models to be loaded and report how many
requests they have open, so that no model in use is unloaded. Messages are framed as in `protocol.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import msgspec

from quicksilver.core import EngineInfo, EngineState
from quicksilver.errors import EngineUnavailable, QuicksilverError
from quicksilver.worker import protocol
from quicksilver.worker.pool import EnginePool, PooledEngine

# Seconds between two checks of the state of the pool. A worker that was replaced has a new socket.
POLL_S = 0.05


class ModelStatus(msgspec.Struct, frozen=True):
    name: str
    state: EngineState
    # None while no worker listens.
    socket: str | None
    info: EngineInfo | None


class Statuses(msgspec.Struct, tag=True):
    models: list[ModelStatus]


class Loaded(msgspec.Struct, tag=True):
    """The answer to AskLoad; `error` is empty if the model is loaded."""

    ticket: int
    error: str = ""
    retry_after_s: float = 1.0


class AskLoad(msgspec.Struct, tag=True):
    ticket: int
    model: str


class OpenCounts(msgspec.Struct, tag=True):
    """Open requests of one API process by model."""

    counts: dict[str, int]


class ApiState(StrEnum):
    """`SERVING`: the process accepts connections. `DRAINED`: it was told to stop, and its last reply has ended."""

    SERVING = "serving"
    DRAINED = "drained"


class Report(msgspec.Struct, tag=True):
    """The state of an API process."""

    pid: int
    state: ApiState


FromApi = AskLoad | OpenCounts | Report
ToApi = Statuses | Loaded
from_api_decoder = msgspec.msgpack.Decoder(FromApi)
to_api_decoder = msgspec.msgpack.Decoder(ToApi)


class ControlServer:
    """`start` opens the socket at `path`. `on_report` is called with the id and the new state of an API process."""

    def __init__(self, pool: EnginePool, path: Path, on_report: Callable[[int, ApiState], None]) -> None:
        self.path = path
        self.pool = pool
        self.on_report = on_report
        self._counts: dict[object, dict[str, int]] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> ControlServer:
        previous = os.umask(0o177)  # the socket is created with mode 0600
        try:
            self._server = await asyncio.start_unix_server(self._accept, path=str(self.path))
        finally:
            os.umask(previous)
        return self

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def statuses(self) -> list[ModelStatus]:
        return [_status_of(engine) for engine in self.pool.engines.values()]

    def set_counts(self, owner: object, counts: dict[str, int] | None) -> None:
        """Records the open requests of one API process; None when it is gone."""
        if counts is None:
            self._counts.pop(owner, None)
        else:
            self._counts[owner] = counts
        totals = sum((Counter(each) for each in self._counts.values()), Counter[str]())
        for name, engine in self.pool.engines.items():
            if totals[name] != engine.num_open_elsewhere:
                engine.num_open_elsewhere = totals[name]
                engine.touch()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            # Cancelled by `close`; asyncio would log the cancellation as an error.
            with contextlib.suppress(asyncio.CancelledError):
                await _ControlConnection(self, writer).run(reader)
        finally:
            self._connections.discard(task)


def _status_of(engine: PooledEngine) -> ModelStatus:
    path = engine.socket_path if engine.is_ready else None
    return ModelStatus(engine.model.name, engine.health().state, str(path) if path else None, engine.known_info)


class _ControlConnection:
    """One API process."""

    def __init__(self, server: ControlServer, writer: asyncio.StreamWriter) -> None:
        self._server, self._writer = server, writer
        self._loads: set[asyncio.Task[None]] = set()

    async def run(self, reader: asyncio.StreamReader) -> None:
        publishing = asyncio.create_task(self._publish())
        try:
            while (body := await protocol.read_body(reader)) is not None:
                self._handle(from_api_decoder.decode(body))
        except msgspec.MsgspecError:
            pass  # not a message of an API process: close the connection
        finally:
            self._server.set_counts(self, None)
            for task in (publishing, *self._loads):
                task.cancel()
            self._writer.close()

    async def _publish(self) -> None:
        last: list[ModelStatus] | None = None
        while True:
            statuses = self._server.statuses()
            if statuses != last:
                self._send(Statuses(statuses))
                last = statuses
            await asyncio.sleep(POLL_S)

    def _handle(self, message: FromApi) -> None:
        if isinstance(message, OpenCounts):
            self._server.set_counts(self, message.counts)
        elif isinstance(message, Report):
            self._server.on_report(message.pid, message.state)
        else:
            task = asyncio.create_task(self._load(message))
            self._loads.add(task)
            task.add_done_callback(self._loads.discard)

    async def _load(self, ask: AskLoad) -> None:
        try:
            await self._server.pool.engines[ask.model].load()
        except EngineUnavailable as error:
            self._send(Loaded(ask.ticket, error.message, error.retry_after_s))
        except (KeyError, QuicksilverError) as error:
            self._send(Loaded(ask.ticket, str(error) or "this model is not served here"))
        else:
            # The statuses first: after `Loaded` the process looks up the worker's socket.
            self._send(Statuses(self._server.statuses()))
            self._send(Loaded(ask.ticket))

    def _send(self, message: ToApi) -> None:
        if not self._writer.is_closing():
            with contextlib.suppress(ConnectionError):
                self._writer.write(protocol.pack(message))
