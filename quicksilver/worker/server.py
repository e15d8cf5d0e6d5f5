"""The worker's side of the socket: an AsyncEngine on a unix socket that only its owner may open.

One connection carries many requests. The worker ends when its parent does (standard input closes) or when its engine
stops. It does not restart its engine: the supervisor in `client.py` starts a new worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Coroutine
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quicksilver.core import Delta, EngineState, Frame, ScoreRequest
from quicksilver.errors import QuicksilverError
from quicksilver.worker import protocol
from quicksilver.worker.step_record import record_path

if TYPE_CHECKING:  # a replica of a cluster has connections too, and imports no torch
    from quicksilver.engine.engine import StepEvent
    from quicksilver.worker.async_engine import AsyncEngine


async def serve(engine: AsyncEngine, socket_path: Path) -> None:
    """Serves until the parent process ends or the engine stops."""
    writers: set[asyncio.StreamWriter] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        try:
            await Connection(engine, writer).run(reader)
        finally:
            writers.discard(writer)

    previous = os.umask(0o177)  # the socket is created with mode 0600
    try:
        engine.record_steps(record_path(socket_path))
        server = await asyncio.start_unix_server(accept, path=str(socket_path))
    finally:
        os.umask(previous)
    try:
        await _first_of(_parent_ended(), _engine_stopped(engine))
    finally:
        server.close()
        # Not `server.wait_closed()`: since Python 3.12 it waits for the clients, which wait for the end of this worker.
        for writer in writers:
            writer.close()
    await engine.close()


async def _first_of(*waits: Coroutine[None, None, None]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _parent_ended() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


async def _engine_stopped(engine: AsyncEngine) -> None:
    while engine.is_ready:
        await asyncio.sleep(0.1)


class Connection:
    """One client: reads commands and writes replies. The events of a step are one message; if the client is slow to
    read, those of several steps. Deltas are never dropped, and of the frames of a request only the newest is kept."""

    def __init__(self, engine: AsyncEngine, writer: asyncio.StreamWriter) -> None:
        self.loop = asyncio.get_running_loop()
        self._engine, self._writer = engine, writer
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._open: set[str] = set()  # streams that the client still reads
        self._deltas: list[Delta] = []
        self._frames: dict[str, Frame] = {}
        self._has_events = asyncio.Event()

    async def run(self, reader: asyncio.StreamReader) -> None:
        self._send(protocol.Ready(self._engine.info))
        senders = [asyncio.create_task(self._send_heartbeats()), asyncio.create_task(self._send_events())]
        try:
            while (body := await protocol.read_body(reader)) is not None:
                self._handle(protocol.command_decoder.decode(body))
        except msgspec.MsgspecError:
            pass  # not a command: close the connection; the worker continues
        finally:
            for task in (*senders, *self._tasks.values()):
                task.cancel()
            for request_id in list(self._open):
                self._abort(request_id)
            self._writer.close()

    async def _send_heartbeats(self) -> None:
        while True:
            health = self._engine.health()
            self._send(protocol.Heartbeat(health.stats, health.step_s, health.state is EngineState.CLOSED))
            await asyncio.sleep(protocol.HEARTBEAT_S)

    def _handle(self, command: protocol.Command) -> None:
        if isinstance(command, protocol.Submit):
            self._open.add(command.request.id)
            self._start(command.request.id, self._engine.submit(command.request, self))
        elif isinstance(command, protocol.Score):
            self._start(command.request.id, self._score(command.request))
        elif isinstance(command, protocol.AskStats):
            self._start(command.ticket, self._stats(command.ticket))
        elif isinstance(command, protocol.AdapterCommand):
            self._start(command.ticket, self._manage_adapters(command))
        else:
            self._abort(command.request_id)

    def _abort(self, request_id: str) -> None:
        if request_id in self._tasks:
            self._tasks[request_id].cancel()
        if request_id in self._open:
            self._open.discard(request_id)
            with contextlib.suppress(QuicksilverError):
                self._engine.abort(request_id)

    def take(self, events: Seq[tuple[str, StepEvent | Exception]]) -> None:
        """Keeps the events of one step for the next message."""
        for request_id, event in events:
            if request_id not in self._open:
                continue
            if isinstance(event, Exception):
                self._refuse(request_id, event)
            elif isinstance(event, Frame):
                self._frames[request_id] = event
            elif isinstance(event, Delta):
                self._deltas.append(event)
                if event.finish is not None:
                    self._open.discard(request_id)
        self._has_events.set()

    async def _send_events(self) -> None:
        while True:
            await self._has_events.wait()
            self._has_events.clear()
            if self._deltas or self._frames:
                message = protocol.GotEvents(self._deltas, list(self._frames.values()))
                self._deltas, self._frames = [], {}
                self._send(message)
                await self._writer.drain()

    def _start(self, key: str, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(self._guarded(key, work))
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _guarded(self, key: str, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except Exception as error:
            self._refuse(key, error)

    def _refuse(self, key: str, error: Exception) -> None:
        self._open.discard(key)
        self._send(protocol.refuse(key, error))

    async def _score(self, request: ScoreRequest) -> None:
        self._send(protocol.GotScores(request.id, await self._engine.score(request)))

    async def _stats(self, ticket: str) -> None:
        self._send(protocol.GotStats(ticket, await self._engine.stats()))

    async def _manage_adapters(self, command: protocol.AdapterCommand) -> None:
        if isinstance(command, protocol.LoadAdapter):
            reply = protocol.GotAdapters(command.ticket, [await self._engine.load_adapter(command.adapter)])
        elif isinstance(command, protocol.UnloadAdapter):
            is_unloaded = await self._engine.unload_adapter(command.adapter_id)
            reply = protocol.GotAdapters(command.ticket, [], is_unloaded)
        else:
            reply = protocol.GotAdapters(command.ticket, list(await self._engine.list_adapters()))
        self._send(reply)

    def _send(self, message: protocol.Reply) -> None:
        if not self._writer.is_closing():
            self._writer.write(protocol.pack(message))
