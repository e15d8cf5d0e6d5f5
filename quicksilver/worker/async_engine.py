"""AsyncEngine: the engine on a thread of its own, as an EngineClient of this process.

Only the engine's thread accesses the engine; `Engine.prepare` is the exception. Callers post commands to it and get
events back on their event loop. Grammars are built on other threads with a lower priority, so that no step waits for
one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor

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

# Grammars that are built at the same time, and how much lower their priority is than the engine's.
NUM_BUILDERS = 2
NICENESS = 10

_Receive = Callable[[StepEvent | Exception], None]


class AsyncEngine:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._receivers: dict[str, _Receive] = {}
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
        mailbox, loop = Mailbox(), asyncio.get_running_loop()

        def receive(event: StepEvent | Exception) -> None:
            if isinstance(event, Exception):
                loop.call_soon_threadsafe(mailbox.fail, event)
            elif not isinstance(event, Scored):
                loop.call_soon_threadsafe(mailbox.put, event)

        prepared = await self._prepare(request)
        self._post(lambda: self._add(request.id, receive, lambda: self._engine.enqueue(prepared)))
        try:
            async for event in mailbox.read():
                yield event
        finally:
            if not mailbox.is_finished:
                self._post(lambda: self._engine.abort(request.id))

    async def score(self, request: ScoreRequest) -> Scores:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Scores] = loop.create_future()

        def receive(event: StepEvent | Exception) -> None:
            loop.call_soon_threadsafe(_resolve, future, event)

        self._post(lambda: self._add(request.id, receive, lambda: self._engine.add_score(request)))
        try:
            return await future
        except asyncio.CancelledError:
            self._post(lambda: self._engine.abort(request.id))
            raise

    async def stats(self) -> EngineStats:
        return self._engine.stats()

    def health(self) -> EngineHealth:
        started = self._step_start
        step_s = time.monotonic() - started if started is not None else 0.0
        state = EngineState.READY if self.is_ready else EngineState.CLOSED
        return EngineHealth(state, step_s=step_s, stats=self._engine.stats())

    async def close(self) -> None:
        with self._wake:
            self._is_closed = True
            self._wake.notify()
        self._builders.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._thread.join)

    async def _prepare(self, request: Request) -> Prepared:
        if request.constraint is None or not self.is_ready:
            return self._engine.prepare(request)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._builders, self._engine.prepare, request)

    def _post(self, command: Callable[[], None]) -> None:
        if self._death is not None:
            raise EngineDied(f"the engine stopped: {self._death}")
        if self._is_closed:
            raise EngineUnavailable("the engine is closed")
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._step_start = time.monotonic()
                while self._commands:
                    self._commands.popleft()()
                for event in self._engine.step():
                    self._deliver(event)
                self._step_start = None
        except Exception as error:
            self._death = error
        finally:
            self._fail_all()

    def _wait_for_work(self) -> bool:
        with self._wake:
            while not (self._is_closed or self._commands or self._engine.has_work):
                self._wake.wait()
        return not self._is_closed

    def _add(self, request_id: str, receive: _Receive, add: Callable[[], None]) -> None:
        try:
            add()
        except Exception as error:
            receive(error)
        else:
            self._receivers[request_id] = receive

    def _deliver(self, event: StepEvent) -> None:
        receive = self._receivers.get(event.request_id)
        is_last = isinstance(event, Scored) or (isinstance(event, Delta) and event.finish is not None)
        if is_last:
            self._receivers.pop(event.request_id, None)
        if receive is not None:
            receive(event)

    def _fail_all(self) -> None:
        reason = EngineDied(f"the engine stopped: {self._death or 'closed'}")
        for receive in self._receivers.values():
            receive(reason)
        self._receivers.clear()


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
