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
from pathlib import Path

import msgspec

from quicksilver.core import Delta, Request, ScoreRequest
from quicksilver.worker import protocol
from quicksilver.worker.async_engine import AsyncEngine


async def serve(engine: AsyncEngine, socket_path: Path) -> None:
    """Serves until the parent process ends or the engine stops."""
    previous = os.umask(0o177)  # the socket is created with mode 0600
    try:
        server = await asyncio.start_unix_server(lambda r, w: _Connection(engine, w).run(r), path=str(socket_path))
    finally:
        os.umask(previous)
    async with server:
        await _first_of(_parent_ended(), _engine_stopped(engine))
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


class _Connection:
    """One client: reads commands and writes replies."""

    def __init__(self, engine: AsyncEngine, writer: asyncio.StreamWriter) -> None:
        self._engine, self._writer = engine, writer
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self, reader: asyncio.StreamReader) -> None:
        self._send(protocol.Ready(self._engine.info))
        heartbeat = asyncio.create_task(self._send_heartbeats())
        try:
            while (body := await protocol.read_body(reader)) is not None:
                self._handle(protocol.command_decoder.decode(body))
        except msgspec.MsgspecError:
            pass  # not a command: close the connection; the worker continues
        finally:
            for task in (heartbeat, *self._tasks.values()):
                task.cancel()
            self._writer.close()

    async def _send_heartbeats(self) -> None:
        while True:
            health = self._engine.health()
            self._send(protocol.Heartbeat(health.stats, health.step_s))
            await asyncio.sleep(protocol.HEARTBEAT_S)

    def _handle(self, command: protocol.Command) -> None:
        if isinstance(command, protocol.Submit):
            self._start(command.request.id, self._stream(command.request))
        elif isinstance(command, protocol.Score):
            self._start(command.request.id, self._score(command.request))
        elif isinstance(command, protocol.AskStats):
            self._start(command.ticket, self._stats(command.ticket))
        elif command.request_id in self._tasks:
            self._tasks[command.request_id].cancel()

    def _start(self, key: str, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(self._guarded(key, work))
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _guarded(self, key: str, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except Exception as error:
            self._send(protocol.refuse(key, error))

    async def _stream(self, request: Request) -> None:
        async with contextlib.aclosing(self._engine.stream(request)) as events:
            async for event in events:
                self._send(protocol.GotDelta(event) if isinstance(event, Delta) else protocol.GotFrame(event))
                await self._writer.drain()

    async def _score(self, request: ScoreRequest) -> None:
        self._send(protocol.GotScores(request.id, await self._engine.score(request)))

    async def _stats(self, ticket: str) -> None:
        self._send(protocol.GotStats(ticket, await self._engine.stats()))

    def _send(self, message: protocol.Reply) -> None:
        if not self._writer.is_closing():
            self._writer.write(protocol.pack(message))
