"""SharedEngine: the EngineClient of a process that uses a worker which another process started.

`ControlClient` learns over the control socket where the workers listen. Requests go to the worker directly, over a
connection of this process. When the worker is replaced, the engine connects to the new one and continues open requests.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path

import msgspec

from quicksilver.adapters import AdapterInfo, AdapterRef
from quicksilver.core import EngineHealth, EngineInfo, EngineState, Event, Request, ScoreRequest, Scores
from quicksilver.errors import EngineUnavailable
from quicksilver.worker import protocol
from quicksilver.worker.client import RemoteEngine, WorkerTimeouts
from quicksilver.worker.control import (
    ApiState,
    AskLoad,
    FromApi,
    Loaded,
    ModelStatus,
    OpenCounts,
    Report,
    to_api_decoder,
)

log = logging.getLogger("quicksilver.models")

# A connection that ended is tried again at the same address after this time, if no other address was announced.
RECONNECT_S = 1.0
# Seconds from `Loaded` to a connection with the worker.
CONNECT_S = 10.0


class ControlClient:
    """`start`, then `engines`, then `close`. `ended` is set when the owner of the workers is gone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._statuses: dict[str, ModelStatus] = {}
        self._changed = asyncio.Event()
        self._loads: dict[int, asyncio.Future[Loaded]] = {}
        self._tickets = itertools.count()
        self._open: Counter[str] = Counter()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()

    async def start(self) -> ControlClient:
        """Returns when the models are known."""
        reader, self._writer = await asyncio.open_unix_connection(str(self._path))
        self._reading = asyncio.create_task(self._read(reader))
        while not self._statuses and not self.ended.is_set():
            await self.wait_for_change(RECONNECT_S)
        return self

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()

    def status(self, model: str) -> ModelStatus:
        return self._statuses[model]

    async def wait_for_change(self, limit_s: float) -> None:
        """Returns after the next message about the models, or after `limit_s`."""
        changed = self._changed
        with suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), limit_s)

    async def load(self, model: str) -> None:
        """Returns when the model is loaded; raises the refusal of the process that owns the workers."""
        if self.ended.is_set():
            raise EngineUnavailable("the server is shutting down")
        ticket = next(self._tickets)
        answer = self._loads[ticket] = asyncio.get_running_loop().create_future()
        try:
            self._send(AskLoad(ticket, model))
            loaded = await answer
        finally:
            del self._loads[ticket]
        if loaded.error:
            raise EngineUnavailable(loaded.error, retry_after_s=loaded.retry_after_s)

    def report(self, state: ApiState) -> None:
        self._send(Report(os.getpid(), state))

    @contextmanager
    def counted(self, model: str) -> Iterator[None]:
        """One open request; while there is one, the model is not unloaded."""
        self._count(model, 1)
        try:
            yield
        finally:
            self._count(model, -1)

    def _count(self, model: str, change: int) -> None:
        was_open = self._open[model] > 0
        self._open[model] += change
        if was_open != (self._open[model] > 0):
            self._send(OpenCounts({name: count for name, count in self._open.items() if count}))

    def _send(self, message: FromApi) -> None:
        if self._writer is None or self._writer.is_closing():
            return
        self._writer.write(protocol.pack(message))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while (body := await protocol.read_body(reader)) is not None:
                self._take(body)
        except msgspec.MsgspecError as error:
            log.error("unreadable message on the control socket: %s", error)
        finally:
            self.ended.set()
            for answer in self._loads.values():
                if not answer.done():
                    answer.set_exception(EngineUnavailable("the server is shutting down"))

    def _take(self, body: bytes) -> None:
        message = to_api_decoder.decode(body)
        if isinstance(message, Loaded):
            answer = self._loads.get(message.ticket)
            if answer is not None and not answer.done():
                answer.set_result(message)
            return
        self._statuses = {status.name: status for status in message.models}
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class SharedEngine(RemoteEngine):
    """One model of the process behind the control socket."""

    def __init__(self, model: str, control: ControlClient, timeouts: WorkerTimeouts | None = None) -> None:
        super().__init__((), timeouts)
        self._model = model
        self._control = control
        self._socket = ""
        self._left_at = 0.0  # event loop time at which the last connection ended

    async def start(self) -> SharedEngine:
        """Connects when the worker listens, now or later; does not wait for it."""
        self._supervisor = asyncio.create_task(self._supervise())
        return self

    @property
    def info(self) -> EngineInfo:
        info = self._info or self._control.status(self._model).info
        if info is None:
            raise EngineUnavailable(f"{self._model} has not been loaded yet")
        return info

    @property
    def is_loaded(self) -> bool:
        return self.is_ready

    @property
    def socket_path(self) -> Path:
        return Path(self._socket)

    def health(self) -> EngineHealth:
        state = self._control.status(self._model).state
        if self.is_ready or self._is_closed or state is EngineState.READY:
            return super().health()
        return EngineHealth(state)

    async def load(self) -> None:
        if not self.is_ready:
            await self._control.load(self._model)
            try:
                await asyncio.wait_for(self._ready.wait(), CONNECT_S)
            except TimeoutError:
                raise EngineUnavailable(f"{self._model} is loading; retry shortly") from None

    async def wait_if_loaded(self) -> None:
        """Waits for the connection if the worker listens already."""
        if self._control.status(self._model).socket is not None:
            await asyncio.wait_for(self._ready.wait(), CONNECT_S)

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        with self._control.counted(self._model):
            await self.load()
            async with aclosing(super().stream(request)) as events:
                async for event in events:
                    yield event

    async def score(self, request: ScoreRequest) -> Scores:
        with self._control.counted(self._model):
            await self.load()
            return await super().score(request)

    async def load_adapter(self, adapter: AdapterRef) -> AdapterInfo:
        with self._control.counted(self._model):
            await self.load()
            return await super().load_adapter(adapter)

    async def _start_worker(self) -> asyncio.StreamReader:
        """Connects to the worker as soon as it listens."""
        self._starts += 1
        self._left_at = asyncio.get_running_loop().time()
        while True:
            await self._load_for_open_requests()
            socket = self._control.status(self._model).socket
            if socket is not None and self._may_connect(socket):
                with suppress(OSError):
                    reader, self._writer = await asyncio.open_unix_connection(socket)
                    self._socket = socket
                    return reader
                self._socket, self._left_at = socket, asyncio.get_running_loop().time()
            await self._control.wait_for_change(RECONNECT_S)

    async def _load_for_open_requests(self) -> None:
        """Asks for a model that was unloaded before the owner learned of the requests that are open here."""
        if self._unfinished() and self._control.status(self._model).state is EngineState.UNLOADED:
            with suppress(EngineUnavailable):
                await self._control.load(self._model)

    def _may_connect(self, socket: str) -> bool:
        """Whether this is another worker, or the same one after a pause."""
        return socket != self._socket or asyncio.get_running_loop().time() - self._left_at >= RECONNECT_S

    def _kill(self, reason: str) -> None:
        """The worker belongs to another process, which replaces it; here only the connection ends."""
        log.error("leaving the engine worker: %s", reason)
        if self._writer is not None:
            self._writer.close()
