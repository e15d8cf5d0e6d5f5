"""RemoteEngine: an EngineClient whose engine runs in a worker process, and the supervisor of that process.

The API process imports no torch. If the worker dies, every open request fails with EngineDied, new requests are refused
with EngineUnavailable, and a new worker is started with exponential backoff. A worker that sends no heartbeat, or whose
step does not end, is killed and replaced in the same way. Loading a model may take minutes: heartbeats are expected
only after the worker's first message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from quicksilver.core import (
    EngineHealth,
    EngineInfo,
    EngineState,
    EngineStats,
    Event,
    Request,
    ScoreRequest,
    Scores,
    setting,
)
from quicksilver.errors import EngineDied, EngineUnavailable, QuicksilverError
from quicksilver.worker import protocol
from quicksilver.worker.mailbox import Mailbox

log = logging.getLogger("quicksilver.supervisor")

FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0

_Pending = Mailbox | asyncio.Future[Scores | EngineStats]


@dataclass(frozen=True, slots=True)
class WorkerTimeouts:
    """Limits on a worker, in seconds."""

    start_s: float = setting(600.0, "From process start to the first message, including loading and compiling.")
    stats_s: float = setting(3.0, "For an answer to `stats`.")
    unresponsive_s: float = setting(2.0, "Without a message: `health` reports the worker as unresponsive.")
    silent_s: float = setting(5.0, "Without a message: the worker is killed and replaced.")
    step_s: float = setting(300.0, "For one step: a worker that takes longer is killed and replaced.")


class RemoteEngine:
    """`command` starts a worker; `--socket PATH` is appended to it."""

    def __init__(self, command: Sequence[str], timeouts: WorkerTimeouts | None = None) -> None:
        self._command = list(command)
        self._timeouts = timeouts or WorkerTimeouts()
        self._folder = tempfile.TemporaryDirectory(prefix="quicksilver-")  # created with mode 0700
        self._info: EngineInfo | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._pending: dict[str, _Pending] = {}
        self._ready = asyncio.Event()
        self._is_closed = False
        self._supervisor: asyncio.Task[None] | None = None
        self._starts = 0
        self._last_message = 0.0  # event loop time
        self._heartbeat = protocol.Heartbeat(EngineStats(), 0.0)

    async def start(self) -> RemoteEngine:
        """Starts the worker and its supervisor. Returns when the model is loaded; raises if the first start fails."""
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

    def health(self) -> EngineHealth:
        stats = replace(self._heartbeat.stats, restarts=max(self._starts - 1, 0))
        if self._is_closed or not self.is_ready:
            return EngineHealth(EngineState.CLOSED if self._is_closed else EngineState.STARTING, stats=stats)
        silent_s = asyncio.get_running_loop().time() - self._last_message
        state = EngineState.READY if silent_s < self._timeouts.unresponsive_s else EngineState.UNRESPONSIVE
        return EngineHealth(state, silent_s, self._heartbeat.step_s, stats)

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        mailbox = Mailbox()
        self._ask(request.id, mailbox, protocol.Submit(request))
        try:
            async for event in mailbox.read():
                yield event
        finally:
            self._pending.pop(request.id, None)
            if not mailbox.is_finished:
                self._abort(request.id)

    async def score(self, request: ScoreRequest) -> Scores:
        try:
            scores = await self._ask_once(request.id, protocol.Score(request))
        except asyncio.CancelledError:
            self._abort(request.id)
            raise
        assert isinstance(scores, Scores)
        return scores

    async def stats(self) -> EngineStats:
        if not self.is_ready:
            return EngineStats(restarts=max(self._starts - 1, 0))
        ticket = uuid.uuid4().hex
        try:
            async with asyncio.timeout(self._timeouts.stats_s):
                stats = await self._ask_once(ticket, protocol.AskStats(ticket))
        except TimeoutError:
            raise EngineUnavailable("the engine worker does not answer; retry shortly") from None
        assert isinstance(stats, EngineStats)
        return replace(stats, restarts=self._starts - 1)

    async def close(self) -> None:
        self._is_closed = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError, QuicksilverError):
                await self._supervisor
        await self._stop_worker()
        self._ready.clear()
        self._fail_all(EngineUnavailable("the engine is closed"))
        self._folder.cleanup()

    async def _ask_once(self, key: str, command: protocol.Command) -> Scores | EngineStats:
        future: asyncio.Future[Scores | EngineStats] = asyncio.get_running_loop().create_future()
        self._ask(key, future, command)
        try:
            return await future
        finally:
            self._pending.pop(key, None)

    def _ask(self, key: str, pending: _Pending, command: protocol.Command) -> None:
        if self._writer is None or not self.is_ready:
            raise EngineUnavailable("the engine is starting; retry shortly")
        self._pending[key] = pending
        self._writer.write(protocol.pack(command))

    def _abort(self, request_id: str) -> None:
        if self._writer is not None:
            self._writer.write(protocol.pack(protocol.Abort(request_id)))

    async def _supervise(self) -> None:
        """Keeps one worker alive. Raises if the first start fails; later starts are retried with backoff."""
        pause_s = FIRST_PAUSE_S
        while True:
            reader = await self._start_worker()
            if reader is not None:
                pause_s = FIRST_PAUSE_S
                await self._read_while_alive(reader)
            elif self._info is None:
                raise EngineUnavailable("the engine worker did not start; its log above says why")
            await self._replace_worker()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_PAUSE_S)

    async def _start_worker(self) -> asyncio.StreamReader | None:
        self._starts += 1
        path = Path(self._folder.name) / f"engine-{self._starts}.sock"
        self._process = await asyncio.create_subprocess_exec(
            *self._command, "--socket", str(path), stdin=asyncio.subprocess.PIPE
        )
        return await self._connect(path)

    async def _connect(self, path: Path) -> asyncio.StreamReader | None:
        """The worker opens its socket when the model is loaded. None if it ends, is stopped or takes too long."""
        assert self._process is not None
        loop = asyncio.get_running_loop()
        now = last_running = loop.time()
        deadline = now + self._timeouts.start_s
        while self._process.returncode is None and now < deadline:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                reader, self._writer = await asyncio.open_unix_connection(str(path))
                return reader
            await asyncio.sleep(0.02)
            now = loop.time()
            last_running = last_running if _is_stopped(self._process.pid) else now
            if now - last_running > self._timeouts.silent_s:
                break
        if self._process.returncode is None:
            self._kill("it did not start in time, or was stopped")
        return None

    def _kill(self, reason: str) -> None:
        assert self._process is not None
        log.error("killing the engine worker: %s", reason)
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def _read_while_alive(self, reader: asyncio.StreamReader) -> None:
        self._last_message = asyncio.get_running_loop().time()
        self._heartbeat = protocol.Heartbeat(EngineStats(), 0.0)
        watch = asyncio.create_task(self._kill_if_hung())
        try:
            while (body := await protocol.read_body(reader)) is not None:
                self._last_message = asyncio.get_running_loop().time()
                self._take(protocol.reply_decoder.decode(body))
        except msgspec.MsgspecError as error:
            log.error("the worker sent an unreadable message: %s", error)
        finally:
            watch.cancel()

    async def _kill_if_hung(self) -> None:
        """Ends when the worker is killed; the supervisor then sees the end of the connection."""
        loop = asyncio.get_running_loop()
        while (reason := self._hang_reason(loop.time())) is None:
            expected = loop.time() + protocol.HEARTBEAT_S
            await asyncio.sleep(protocol.HEARTBEAT_S)
            # If this process was stopped or busy, heartbeats may lie unread in the socket: that is not silence.
            self._last_message += max(loop.time() - expected, 0.0)
        self._kill(reason)

    def _hang_reason(self, now: float) -> str | None:
        if now - self._last_message > self._timeouts.silent_s:
            return f"no message for {self._timeouts.silent_s:g} s"
        if self._heartbeat.step_s > self._timeouts.step_s:
            return f"one step takes more than {self._timeouts.step_s:g} s"
        return None

    def _take(self, reply: protocol.Reply) -> None:
        if isinstance(reply, protocol.Ready):
            self._info = reply.info
            self._ready.set()
        elif isinstance(reply, protocol.Heartbeat):
            self._heartbeat = reply
        elif isinstance(reply, protocol.GotDelta | protocol.GotFrame):
            event: Event = reply.delta if isinstance(reply, protocol.GotDelta) else reply.frame
            mailbox = self._pending.get(event.request_id)
            if isinstance(mailbox, Mailbox):
                mailbox.put(event)
        elif isinstance(reply, protocol.Refused):
            _fail(self._pending.pop(reply.request_id, None), protocol.to_error(reply))
        else:
            self._resolve(reply)

    def _resolve(self, reply: protocol.GotScores | protocol.GotStats) -> None:
        key = reply.request_id if isinstance(reply, protocol.GotScores) else reply.ticket
        future = self._pending.pop(key, None)
        if isinstance(future, asyncio.Future) and not future.done():
            future.set_result(reply.scores if isinstance(reply, protocol.GotScores) else reply.stats)

    async def _replace_worker(self) -> None:
        self._ready.clear()
        self._fail_all(EngineDied("the engine worker died under this request; retry"))
        await self._stop_worker()
        code = self._process.returncode if self._process else None
        log.error("the engine worker ended (exit code %s); starting another", code)

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


def _is_stopped(pid: int) -> bool:
    """Whether the process is stopped by a signal (Linux; elsewhere False)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


def _fail(pending: _Pending | None, error: QuicksilverError) -> None:
    if isinstance(pending, Mailbox):
        pending.fail(error)
    elif pending is not None and not pending.done():
        pending.set_exception(error)
