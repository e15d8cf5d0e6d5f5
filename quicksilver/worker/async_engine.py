"""AsyncEngine: the engine on a thread of its own, as an EngineClient of this process.

Only the engine's thread steps the engine; `Engine.prepare` and its adapters may be used by other threads. Callers post
commands to it and get events back on their event loop. Grammars are built and adapters are loaded on other threads with
a lower priority, so that no step waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

from quicksilver.adapters import AdapterInfo, AdapterRef
from quicksilver.core import (
    Delta,
    EngineHealth,
    EngineInfo,
    EngineState,
    EngineStats,
    Event,
    Request,
    ScoreRequest,
    Scores,
)
from quicksilver.engine.engine import Engine, Prepared, Scored, StepEvent
from quicksilver.errors import EngineDied, EngineUnavailable, RowFailed
from quicksilver.worker.mailbox import Mailbox
from quicksilver.worker.step_record import StepRecord

# Grammars and adapters that are built at the same time, and how much lower their priority is than the engine's.
NUM_BUILDERS = 2
NICENESS = 10

Result = TypeVar("Result")


class EventSink(Protocol):
    """Receives events on the event loop that it belongs to. Those of one step arrive together."""

    loop: asyncio.AbstractEventLoop

    def take(self, events: Seq[tuple[str, StepEvent | Exception]]) -> None:
        """Request ids and their events, in order. An exception is the last event of its request."""


class AsyncEngine:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._sinks: dict[str, EventSink] = {}
        self._is_closed = False
        self._death: Exception | None = None
        self._step_start: float | None = None  # None while the engine's thread waits for work
        self._builders = ThreadPoolExecutor(NUM_BUILDERS, "quicksilver-grammar", initializer=_lower_priority)
        self._thread = threading.Thread(target=self._run, name="quicksilver-engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def is_ready(self) -> bool:
        return self._thread.is_alive() and self._death is None and not self._is_closed

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        mailbox = Mailbox()
        await self.submit(request, _MailboxSink(mailbox))
        try:
            async for event in mailbox.read():
                yield event
        finally:
            if not mailbox.is_finished:
                self.abort(request.id)

    async def submit(self, request: Request, sink: EventSink) -> None:
        """Queues a request, whose events `sink` receives. Raises if it can never run."""
        prepared = await self._prepare(request)
        self._post_request(request.id, sink, lambda: self._engine.enqueue(prepared))

    def abort(self, request_id: str) -> None:
        """Ends a request of any kind within one step. Its sink still receives the last event. An engine that has
        stopped has ended all its requests."""
        with contextlib.suppress(EngineDied, EngineUnavailable):
            self._post(lambda: self._engine.abort(request_id))

    async def load_adapter(self, adapter: AdapterRef) -> AdapterInfo:
        return await self._on_builder(lambda: self._engine.adapters.info(adapter))

    async def unload_adapter(self, adapter_id: str) -> bool:
        return self._engine.adapters.unload(adapter_id)

    async def list_adapters(self) -> tuple[AdapterInfo, ...]:
        return self._engine.adapters.list()

    async def score(self, request: ScoreRequest) -> Scores:
        # A lease keeps the adapter in memory until the engine's thread has one of its own.
        ref = request.adapter
        lease = await self._on_builder(lambda: self._engine.adapters.lease(ref)) if ref is not None else None
        try:
            return await self._score(request, lease)
        finally:
            del lease

    async def _score(self, request: ScoreRequest, lease: object) -> Scores:
        future: asyncio.Future[Scores] = asyncio.get_running_loop().create_future()
        sink = _FutureSink(future)
        self._post_request(request.id, sink, lambda: self._engine.add_score(request))
        try:
            return await future
        except asyncio.CancelledError:
            self.abort(request.id)
            raise

    async def stats(self) -> EngineStats:
        return self._engine.stats()

    def health(self) -> EngineHealth:
        started = self._step_start
        step_s = time.monotonic() - started if started is not None else 0.0
        state = EngineState.READY if self.is_ready else EngineState.CLOSED
        return EngineHealth(state, step_s=step_s, stats=self._engine.stats())

    def record_steps(self, path: Path) -> None:
        """Keeps the ids of the requests in the current step in this file."""
        self._engine.on_step = StepRecord(path).write

    async def close(self) -> None:
        with self._wake:
            self._is_closed = True
            self._wake.notify()
        self._builders.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._thread.join)

    async def _prepare(self, request: Request) -> Prepared:
        needs_adapter = request.adapter is not None and not self._engine.has_adapter(request.adapter)
        if not self.is_ready or (request.constraint is None and not needs_adapter):
            return self._engine.prepare(request)
        return await self._on_builder(lambda: self._engine.prepare(request))

    async def _on_builder(self, work: Callable[[], Result]) -> Result:
        """Runs `work` on a builder thread, which has a lower priority than the engine's. Raises EngineUnavailable if
        the engine is closed before a thread takes it."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._builders, work)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_closed and task is not None and not task.cancelling():
                raise EngineUnavailable("the engine is closed") from None
            raise

    def _post_request(self, request_id: str, sink: EventSink, add: Callable[[], None]) -> None:
        """Posts a new request. The sink is known before the command runs, so that it receives an error if the engine
        stops first."""
        with self._wake:
            self._check_running()
            self._sinks[request_id] = sink
            self._post(lambda: self._add(request_id, sink, add))

    def _post(self, command: Callable[[], None]) -> None:
        with self._wake:
            self._check_running()
            self._commands.append(command)
            self._wake.notify()

    def _check_running(self) -> None:
        if self._death is not None:
            raise EngineDied(f"the engine stopped: {self._death}")
        if self._is_closed:
            raise EngineUnavailable("the engine is closed")

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._step_start = time.monotonic()
                while self._commands:
                    self._commands.popleft()()
                self._deliver(self._engine.step())
                self._step_start = None
        except Exception as error:
            with self._wake:  # no request is posted after it
                self._death = error
        finally:
            self._fail_all()

    def _wait_for_work(self) -> bool:
        with self._wake:
            while not (self._is_closed or self._commands or self._engine.has_work):
                self._wake.wait()
        return not self._is_closed

    def _add(self, request_id: str, sink: EventSink, add: Callable[[], None]) -> None:
        try:
            add()
        except Exception as error:
            del self._sinks[request_id]
            _send([(sink, [(request_id, error)])])

    def _deliver(self, events: Seq[StepEvent]) -> None:
        batches: dict[EventSink, list[tuple[str, StepEvent | Exception]]] = {}
        for event in events:
            sink = self._sinks.get(event.request_id)
            if sink is not None:
                batches.setdefault(sink, []).append((event.request_id, event))
                if isinstance(event, Scored) or (isinstance(event, Delta) and event.finish is not None):
                    del self._sinks[event.request_id]
        _send(batches.items())

    def _fail_all(self) -> None:
        reason = EngineDied(f"the engine stopped: {self._death or 'closed'}")
        _send([(sink, [(request_id, reason)]) for request_id, sink in self._sinks.items()])
        self._sinks.clear()


class _MailboxSink:
    def __init__(self, mailbox: Mailbox) -> None:
        self.loop = asyncio.get_running_loop()
        self._mailbox = mailbox

    def take(self, events: Seq[tuple[str, StepEvent | Exception]]) -> None:
        for _, event in events:
            if isinstance(event, Exception):
                self._mailbox.fail(event)
            elif not isinstance(event, Scored):
                self._mailbox.put(event)


class _FutureSink:
    def __init__(self, future: asyncio.Future[Scores]) -> None:
        self.loop = asyncio.get_running_loop()
        self._future = future

    def take(self, events: Seq[tuple[str, StepEvent | Exception]]) -> None:
        for _, event in events:
            _resolve(self._future, event)


_Batches = Iterable[tuple[EventSink, Seq[tuple[str, StepEvent | Exception]]]]


def _send(batches: _Batches) -> None:
    """Passes events to their sinks, with one call for each event loop: a call from another thread is expensive. Events
    for a loop that was closed are dropped: nobody reads them."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[EventSink, Seq[tuple[str, StepEvent | Exception]]]]] = {}
    for sink, events in batches:
        by_loop.setdefault(sink.loop, []).append((sink, events))
    for loop, parts in by_loop.items():
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_take_all, parts)


def _take_all(batches: _Batches) -> None:
    for sink, events in batches:
        sink.take(events)


def _lower_priority() -> None:
    with contextlib.suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def _resolve(future: asyncio.Future[Scores], event: StepEvent | Exception) -> None:
    if future.done():
        return
    if isinstance(event, Scored):
        future.set_result(event.scores)
    elif isinstance(event, Exception):
        future.set_exception(event)
    elif isinstance(event, Delta):
        code, _, message = (event.error or "row_failed: scoring was aborted").partition(": ")
        future.set_exception(RowFailed(message, code=code))
