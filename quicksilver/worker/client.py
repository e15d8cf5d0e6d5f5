"""RemoteEngine: an EngineClient whose engine lives in a worker process, and the supervisor that keeps one alive.

No torch here: the API process never loads it. When the worker dies every open request fails with EngineDied, new ones
are refused with EngineUnavailable, and a fresh worker is started with growing pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from quicksilver.core import EngineInfo, EngineStats, Event, Request, ScoreRequest, Scores
from quicksilver.errors import EngineDied, EngineUnavailable, QuicksilverError
from quicksilver.worker import protocol as wire
from quicksilver.worker.mailbox import Mailbox

log = logging.getLogger("quicksilver.supervisor")

_Pending = Mailbox | asyncio.Future[Scores | EngineStats]


class RemoteEngine:
    """`command` starts a worker; `--socket PATH` is appended to it."""

    def __init__(self, command: Sequence[str], start_timeout_s: float = 120.0) -> None:
        self._command = list(command)
        self._start_timeout_s = start_timeout_s
        self._home = tempfile.TemporaryDirectory(prefix="quicksilver-")  # created with mode 0700
        self._info: EngineInfo | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._pending: dict[str, _Pending] = {}
        self._ready = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._starts = 0

    async def start(self) -> RemoteEngine:
        """Start the worker and its supervisor; returns when the model is loaded, raises if the first start fails."""
        self._supervisor = asyncio.create_task(self._supervise())
        waiting = asyncio.create_task(self._ready.wait())
        await asyncio.wait({waiting, self._supervisor}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not self._ready.is_set():
            await self._supervisor
        return self

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineUnavailable("the engine has not started yet")
        return self._info

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    @property
    def worker_pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        mailbox = Mailbox()
        self._ask(request.id, mailbox, wire.Submit(request))
        try:
            async for event in mailbox.read():
                yield event
        finally:
            self._pending.pop(request.id, None)
            if not mailbox.is_finished:
                self._abort(request.id)

    async def score(self, request: ScoreRequest) -> Scores:
        try:
            scores = await self._ask_once(request.id, wire.Score(request))
        except asyncio.CancelledError:
            self._abort(request.id)
            raise
        assert isinstance(scores, Scores)
        return scores

    def _abort(self, request_id: str) -> None:
        if self._writer is not None:
            self._writer.write(wire.pack(wire.Abort(request_id)))

    async def stats(self) -> EngineStats:
        if not self.is_ready:
            return EngineStats(restarts=max(self._starts - 1, 0))
        ticket = uuid.uuid4().hex
        stats = await self._ask_once(ticket, wire.AskStats(ticket))
        assert isinstance(stats, EngineStats)
        return replace(stats, restarts=self._starts - 1)

    async def close(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError, QuicksilverError):
                await self._supervisor
        await self._stop_worker()
        self._fail_all(EngineUnavailable("the engine is closed"))
        self._home.cleanup()

    async def _ask_once(self, key: str, command: wire.Command) -> Scores | EngineStats:
        future: asyncio.Future[Scores | EngineStats] = asyncio.get_running_loop().create_future()
        self._ask(key, future, command)
        try:
            return await future
        finally:
            self._pending.pop(key, None)

    def _ask(self, key: str, pending: _Pending, command: wire.Command) -> None:
        if self._writer is None or not self.is_ready:
            raise EngineUnavailable("the engine is starting; retry shortly")
        self._pending[key] = pending
        self._writer.write(wire.pack(command))

    async def _supervise(self) -> None:
        """Keep one worker alive. The first start may fail loudly; later ones are retried with growing pauses."""
        pause_s = 0.1
        while True:
            reader = await self._start_worker()
            if reader is not None:
                pause_s = 0.1
                await self._read_replies(reader)
            elif self._info is None:
                raise EngineUnavailable("the engine worker did not start; its log above says why")
            self._worker_died()
            await self._stop_worker()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 10.0)

    async def _start_worker(self) -> asyncio.StreamReader | None:
        self._starts += 1
        path = Path(self._home.name) / f"engine-{self._starts}.sock"
        self._process = await asyncio.create_subprocess_exec(
            *self._command, "--socket", str(path), stdin=asyncio.subprocess.PIPE
        )
        return await self._connect(path)

    async def _connect(self, path: Path) -> asyncio.StreamReader | None:
        """The worker opens its socket when the model is loaded; its first message is Ready."""
        assert self._process is not None
        deadline = asyncio.get_running_loop().time() + self._start_timeout_s
        while self._process.returncode is None and asyncio.get_running_loop().time() < deadline:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                reader, self._writer = await asyncio.open_unix_connection(str(path))
                return reader
            await asyncio.sleep(0.02)
        return None

    async def _read_replies(self, reader: asyncio.StreamReader) -> None:
        try:
            while (body := await wire.read_body(reader)) is not None:
                self._take(wire.reply_decoder.decode(body))
        except msgspec.MsgspecError as error:
            log.error("the worker sent something unreadable: %s", error)

    def _take(self, reply: wire.Reply) -> None:
        if isinstance(reply, wire.Ready):
            self._info = reply.info
            self._ready.set()
        elif isinstance(reply, wire.GotDelta | wire.GotFrame):
            event: Event = reply.delta if isinstance(reply, wire.GotDelta) else reply.frame
            mailbox = self._pending.get(event.request_id)
            if isinstance(mailbox, Mailbox):
                mailbox.put(event)
        elif isinstance(reply, wire.Refused):
            _fail(self._pending.pop(reply.request_id, None), wire.to_error(reply))
        else:
            self._resolve(reply)

    def _resolve(self, reply: wire.GotScores | wire.GotStats) -> None:
        key = reply.request_id if isinstance(reply, wire.GotScores) else reply.ticket
        future = self._pending.pop(key, None)
        if isinstance(future, asyncio.Future) and not future.done():
            future.set_result(reply.scores if isinstance(reply, wire.GotScores) else reply.stats)

    def _worker_died(self) -> None:
        self._ready.clear()
        code = self._process.returncode if self._process else None
        log.error("the engine worker ended (exit code %s); starting another", code)
        self._fail_all(EngineDied("the engine worker died under this request; retry"))

    def _fail_all(self, error: QuicksilverError) -> None:
        pending, self._pending = self._pending, {}
        for waiting in pending.values():
            _fail(waiting, error)

    async def _stop_worker(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._process is None or self._process.returncode is not None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), timeout=5)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def _fail(pending: _Pending | None, error: QuicksilverError) -> None:
    if isinstance(pending, Mailbox):
        pending.fail(error)
    elif pending is not None and not pending.done():
        pending.set_exception(error)
