"""RemoteEngine: an EngineClient whose engine runs in a worker process, and the supervisor of that process.

The API process imports no torch. If the worker dies, a new one is started with exponential backoff, and open requests
continue in it (`pending.py`). Until it is ready new requests are refused with EngineUnavailable; open requests that
cannot be continued fail with EngineDied. A worker that sends no heartbeat, or whose step does not end, is killed and
replaced in the same way. Loading a model may take minutes: heartbeats are expected only after the worker's first
message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import uuid
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from quicksilver.adapters import AdapterInfo, AdapterRef
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
from quicksilver.worker.pending import PendingRequest, PendingScore, PendingStream
from quicksilver.worker.process import LeftFiles, StartProcess, WorkerProcess
from quicksilver.worker.spare import FIRST_DELAY_S, NEXT_DELAY_S, SpareWorker
from quicksilver.worker.step_record import clear_step, read_step, record_path

log = logging.getLogger("quicksilver.supervisor")

FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0


@dataclass(frozen=True, slots=True)
class WorkerTimeouts:
    """Limits on a worker, in seconds."""

    start_s: float = setting(600.0, "From process start to the first message, including loading and compiling.")
    stats_s: float = setting(3.0, "For an answer to `stats`.")
    adapter_s: float = setting(60.0, "For loading an adapter.")
    unresponsive_s: float = setting(
        2.0, "Without a message: `health` reports the worker as unresponsive, and a stopped one is replaced."
    )
    silent_s: float = setting(5.0, "Without a message: the worker is killed and replaced.")
    step_s: float = setting(300.0, "For one step: a worker that takes longer is killed and replaced.")
    resume_s: float = setting(60.0, "For a new worker: open requests that wait longer for it fail.")


class RemoteEngine:
    """`command` starts a worker; `--socket PATH` is appended to it. With `has_spare`, a second worker is kept loaded
    on a CPU while memory allows it, so that the next one is ready at once."""

    def __init__(
        self,
        command: Sequence[str],
        timeouts: WorkerTimeouts | None = None,
        *,
        has_spare: bool = False,
        start_process: StartProcess = WorkerProcess.start,
    ) -> None:
        self.has_spare = has_spare
        self._start_process = start_process
        self._command = list(command)
        self._timeouts = timeouts or WorkerTimeouts()
        self._folder = tempfile.TemporaryDirectory(prefix="quicksilver-")  # created with mode 0700
        self._info: EngineInfo | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._worker: WorkerProcess | None = None
        self._spare = SpareWorker(self._new_process)
        self._num_processes = 0
        self._left_files = LeftFiles()
        self._pending: dict[str, PendingRequest] = {}
        self._stats: dict[str, asyncio.Future[EngineStats]] = {}
        self._adapter_calls: dict[str, asyncio.Future[protocol.GotAdapters]] = {}
        self._resume_deadline: asyncio.TimerHandle | None = None
        self._num_migrations = 0
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
    def socket_path(self) -> Path:
        """The socket of the current worker. Other processes of the same user may connect to it too."""
        assert self._worker is not None
        return self._worker.socket_path

    @property
    def worker_pid(self) -> int | None:
        return self._worker.pid if self._worker else None

    def health(self) -> EngineHealth:
        stats = self._with_counts(self._heartbeat.stats)
        if self._is_closed or not self.is_ready:
            return EngineHealth(EngineState.CLOSED if self._is_closed else EngineState.STARTING, stats=stats)
        silent_s = asyncio.get_running_loop().time() - self._last_message
        state = EngineState.READY if silent_s < self._timeouts.unresponsive_s else EngineState.UNRESPONSIVE
        return EngineHealth(state, silent_s, self._heartbeat.step_s, stats)

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        pending = PendingStream(request)
        self._submit(pending)
        try:
            async for event in pending.mailbox.read():
                yield event
        finally:
            self._drop(pending)

    async def score(self, request: ScoreRequest) -> Scores:
        pending = PendingScore(request)
        self._submit(pending)
        try:
            return await pending.future
        finally:
            self._drop(pending)

    async def load_adapter(self, adapter: AdapterRef) -> AdapterInfo:
        return (await self._call_adapters(protocol.LoadAdapter(uuid.uuid4().hex, adapter))).adapters[0]

    async def unload_adapter(self, adapter_id: str) -> bool:
        return (await self._call_adapters(protocol.UnloadAdapter(uuid.uuid4().hex, adapter_id))).is_unloaded

    async def list_adapters(self) -> tuple[AdapterInfo, ...]:
        return tuple((await self._call_adapters(protocol.ListAdapters(uuid.uuid4().hex))).adapters)

    async def _call_adapters(self, command: protocol.AdapterCommand) -> protocol.GotAdapters:
        answer: asyncio.Future[protocol.GotAdapters] = asyncio.get_running_loop().create_future()
        self._adapter_calls[command.ticket] = answer
        try:
            self._send(command)
            async with asyncio.timeout(self._timeouts.adapter_s):
                return await answer
        except TimeoutError:
            raise EngineUnavailable("the engine worker did not load the adapter in time; retry") from None
        finally:
            del self._adapter_calls[command.ticket]

    async def stats(self) -> EngineStats:
        if not self.is_ready:
            return self._with_counts(EngineStats())
        ticket = uuid.uuid4().hex
        answer = self._stats[ticket] = asyncio.get_running_loop().create_future()
        try:
            self._send(protocol.AskStats(ticket))
            async with asyncio.timeout(self._timeouts.stats_s):
                return self._with_counts(await answer)
        except TimeoutError:
            raise EngineUnavailable("the engine worker does not answer; retry shortly") from None
        finally:
            self._stats.pop(ticket, None)

    def _with_counts(self, stats: EngineStats) -> EngineStats:
        return replace(stats, restarts=max(self._starts - 1, 0), migrations=self._num_migrations)

    async def close(self) -> None:
        self._is_closed = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError, QuicksilverError):
                await self._supervisor
        await self._stop_worker()
        await self._spare.stop()
        self._ready.clear()
        self._cancel_resume_deadline()
        self._fail_all(EngineUnavailable("the engine is closed"))
        for answer in self._open_calls():
            answer.cancel()
        self._folder.cleanup()

    def _submit(self, pending: PendingRequest) -> None:
        self._send(pending.command())
        self._pending[pending.wire_id] = pending

    def _drop(self, pending: PendingRequest) -> None:
        """Forgets a request whose reader is done, and aborts it in the worker if it is unfinished."""
        self._pending.pop(pending.wire_id, None)
        if not pending.is_finished:
            with contextlib.suppress(EngineUnavailable):
                self._send(protocol.Abort(pending.wire_id))

    def _send(self, command: protocol.Command) -> None:
        if self._writer is None or not self.is_ready:
            raise EngineUnavailable("the engine is starting; retry shortly")
        self._writer.write(protocol.pack(command))

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
        """Takes over the spare worker if there is one, else starts a worker. None if it does not become ready."""
        self._starts += 1
        self._worker = self._spare.take() or await self._try_new_process()
        if self._worker is None:
            return None
        streams = await self._worker.connect(self._timeouts.start_s, self._timeouts.unresponsive_s)
        if streams is None:
            return None
        reader, self._writer = streams
        return reader

    async def _new_process(self) -> WorkerProcess:
        self._num_processes += 1
        path = Path(self._folder.name) / f"engine-{self._num_processes}.sock"
        return await self._start_process(self._command, path)

    async def _try_new_process(self) -> WorkerProcess | None:
        """None if the system has no memory, process or file descriptor left for it. That may pass."""
        try:
            return await self._new_process()
        except OSError as error:
            log.error("the engine worker cannot be started: %s", error)
            return None

    async def _keep_spare(self) -> None:
        await self._ready.wait()
        await self._spare.keep(self.info, FIRST_DELAY_S if self._starts == 1 else NEXT_DELAY_S)

    def _kill(self, reason: str) -> None:
        assert self._worker is not None
        self._worker.kill(reason)

    async def _read_while_alive(self, reader: asyncio.StreamReader) -> None:
        self._last_message = asyncio.get_running_loop().time()
        self._heartbeat = protocol.Heartbeat(EngineStats(), 0.0)
        tasks = [asyncio.create_task(self._kill_if_hung())]
        if self.has_spare:
            tasks.append(asyncio.create_task(self._keep_spare()))
        try:
            while (body := await protocol.read_body(reader)) is not None:
                self._last_message = asyncio.get_running_loop().time()
                self._take(protocol.reply_decoder.decode(body))
        except msgspec.MsgspecError as error:
            log.error("the worker sent an unreadable message: %s", error)
        finally:
            for task in tasks:
                task.cancel()

    async def _kill_if_hung(self) -> None:
        """Ends when the worker is killed; the supervisor then sees the end of the connection."""
        loop = asyncio.get_running_loop()
        while (reason := self._hang_reason(loop.time())) is None:
            expected = loop.time() + protocol.HEARTBEAT_S
            await asyncio.sleep(protocol.HEARTBEAT_S)
            # If this process was stopped or busy, heartbeats may be unread in the socket, so this time does not count.
            self._last_message += max(loop.time() - expected, 0.0)
        if self._worker is not None and self._worker.is_stopped:
            # A signal from outside: no request of the step is to blame.
            clear_step(record_path(self.socket_path))
        self._kill(reason)

    def _hang_reason(self, now: float) -> str | None:
        silent_s = now - self._last_message
        if silent_s > self._timeouts.silent_s:
            return f"no message for {self._timeouts.silent_s:g} s"
        if silent_s > self._timeouts.unresponsive_s and self._worker is not None and self._worker.is_stopped:
            return "it is stopped"
        if self._heartbeat.step_s > self._timeouts.step_s:
            return f"one step takes more than {self._timeouts.step_s:g} s"
        return None

    def _take(self, reply: protocol.Reply) -> None:
        if isinstance(reply, protocol.Ready):
            self._take_ready(reply.info)
        elif isinstance(reply, protocol.Heartbeat):
            self._heartbeat = reply
        elif isinstance(reply, protocol.GotEvents):
            events: list[Event] = [*reply.deltas, *reply.frames]
            for event in events:
                stream = self._pending.get(event.request_id)
                if isinstance(stream, PendingStream):
                    stream.put(event)
        elif isinstance(reply, protocol.GotScores):
            score = self._pending.get(reply.request_id)
            if isinstance(score, PendingScore):
                score.resolve(reply.scores)
        elif isinstance(reply, protocol.GotStats):
            answer = self._stats.pop(reply.ticket, None)
            if answer is not None and not answer.done():
                answer.set_result(reply.stats)
        elif isinstance(reply, protocol.GotAdapters):
            call = self._adapter_calls.get(reply.ticket)
            if call is not None and not call.done():
                call.set_result(reply)
        else:
            self._take_refusal(protocol.to_error(reply), reply.request_id)

    def _take_refusal(self, error: QuicksilverError, request_id: str) -> None:
        call = self._adapter_calls.get(request_id)
        if call is not None and not call.done():
            call.set_exception(error)
        pending = self._pending.get(request_id)
        # An engine that died ends its worker: the request is continued in the next one.
        if pending is not None and not isinstance(error, EngineDied):
            pending.fail(error)

    def _take_ready(self, info: EngineInfo) -> None:
        """Continues the requests that were open when the previous worker ended."""
        if self._info is not None and self._info.fingerprint != info.fingerprint:
            self._fail_all(EngineDied("the model was replaced under this request; retry"))
        self._info = info
        self._ready.set()
        self._cancel_resume_deadline()
        # Requests under suspicion go last: a worker that is killed from outside soon after its start must not end in
        # the step of the same request again.
        for pending in sorted(self._unfinished(), key=lambda each: each.num_ended_alone):
            self._send(pending.command())
            self._num_migrations += 1

    async def _replace_worker(self) -> None:
        # Requests are sent to a worker that is ready. One that did not start has interrupted none.
        if self.is_ready:
            self._ready.clear()
            self._interrupt_all(read_step(record_path(self.socket_path)))
        await self._stop_worker()
        if self._worker is not None:
            self._left_files.add(self._worker.socket_path)
        code = self._worker.exit_code if self._worker else None
        log.error("the engine worker ended (exit code %s); starting another", code)

    def _interrupt_all(self, in_step: Collection[str]) -> None:
        for answer in self._open_calls():
            if not answer.done():
                answer.set_exception(EngineDied("the engine worker died; retry"))
        for pending in self._unfinished():
            if (error := pending.interrupt(in_step)) is not None:
                pending.fail(error)
        self._pending = {pending.wire_id: pending for pending in self._pending.values()}
        if self._resume_deadline is None:
            loop, error = asyncio.get_running_loop(), EngineDied("the engine worker died under this request; retry")
            self._resume_deadline = loop.call_later(self._timeouts.resume_s, self._fail_all, error)

    def _open_calls(self) -> list[asyncio.Future[Any]]:
        return [*self._stats.values(), *self._adapter_calls.values()]

    def _cancel_resume_deadline(self) -> None:
        if self._resume_deadline is not None:
            self._resume_deadline.cancel()
            self._resume_deadline = None

    def _unfinished(self) -> list[PendingRequest]:
        return [pending for pending in self._pending.values() if not pending.is_finished]

    def _fail_all(self, error: QuicksilverError) -> None:
        for pending in self._unfinished():
            pending.fail(error)

    async def _stop_worker(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._worker is not None:
            await self._worker.stop()
