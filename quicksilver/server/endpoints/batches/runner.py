"""BatchRunner: works on the open batches, one of each owner at a time. Work continues after its process died.

The process that works on a batch holds a lease on it; when the lease runs out, another process continues. Each line
that was answered is a stored object, so it is not answered again. With accounts a line carries an Idempotency-Key: a
line that was charged and whose result was not stored is replayed, not generated again.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import FastAPI

from quicksilver.accounts.records import StoredObject
from quicksilver.errors import AuthenticationFailed, InvalidRequest, QuicksilverError
from quicksilver.server.endpoints.batches.lines import answer_line, has_failed, read_lines, refuse_line
from quicksilver.server.endpoints.batches.wire import BatchLine
from quicksilver.server.endpoints.files.store import describe, read_content, write_file
from quicksilver.server.http.guard import Caller
from quicksilver.server.services import Services
from quicksilver.server.storage import EVICTED, read_json, write_json

if TYPE_CHECKING:
    from quicksilver.accounts.objects import ObjectStore

log = logging.getLogger("quicksilver.server")

BATCH, CANCELLATION, LINE, FAILED_LINE = "batch", "batch_cancellation", "line", "failed_line"
LEASE_S = 10
RENEW_S = 2.0
# Seconds between two searches for batches of processes that died.
POLL_S = 5.0
WINDOW_S = 24 * 3600
# While other requests wait for the engine, no line is started for this long.
YIELD_S = 0.05
SPOOL_BYTES = 2**22
# At work in one process at the same time, each of another owner. The lines of each are in memory.
MAX_BATCHES = 16
NO_ROOM = InvalidRequest("This project stores too much: delete files or conversations first.", code="quota_exceeded")

Reply = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch whose lease this process holds."""

    owner: str
    id: str
    key_id: str | None
    reply: Reply
    # Seconds after which its result files expire.
    output_s: int | None = None
    lines: Sequence[BatchLine] = ()


@dataclass(slots=True)
class LineQueue:
    """The lines of a batch that have no result, and the bytes that their results may have."""

    left: deque[int]
    num_free_bytes: int


class BatchRunner:
    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._process = uuid.uuid4().hex
        self._task: asyncio.Task[None] | None = None
        # Set when there may be a batch to claim.
        self._has_new = asyncio.Event()

    def start(self) -> None:
        """Works until no batch is left. If it is running already, it looks for another batch."""
        is_at_work = self._task is not None and not self._task.done()
        if self._task is None or not is_at_work or self._task.get_loop() is not asyncio.get_running_loop():
            self._has_new = asyncio.Event()
            self._task = asyncio.create_task(self._run())
        self._has_new.set()

    async def watch(self) -> None:
        """Looks for open batches as long as the server runs."""
        while True:
            if self._services.storage.has_objects:
                self.start()
            await asyncio.sleep(POLL_S)

    @property
    def _services(self) -> Services:
        services: Services = self._app.state.services
        return services

    async def _run(self) -> None:
        """One batch of each owner at a time, so that one that waits for its rate limit delays no other owner."""
        working: dict[asyncio.Task[None], str] = {}
        try:
            while working or self._has_new.is_set():
                self._has_new.clear()
                batch = await self._claim(working.values()) if len(working) < MAX_BATCHES else None
                if batch is not None:
                    working[asyncio.create_task(self._work(batch))] = batch.owner
                    self._has_new.set()
                elif working:
                    await self._wait_for_change(working)
                    working = {task: owner for task, owner in working.items() if not task.done()}
                    self._has_new.set()
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)

    async def _wait_for_change(self, working: Iterable[asyncio.Task[None]]) -> None:
        """Until a batch ends or another one may be claimed."""
        new = asyncio.create_task(self._has_new.wait())
        try:
            await asyncio.wait({*working, new}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            new.cancel()

    async def _claim(self, owners: Collection[str]) -> OpenBatch | None:
        """The oldest batch of another owner than these."""
        taken = tuple(owners)
        try:
            claimed = await self._services.storage.run(lambda s: s.claim(BATCH, self._process, LEASE_S, taken))
        except QuicksilverError as error:
            log.warning("no batch can be claimed: %s", error.message)
            return None
        if claimed is None:
            return None
        owner, stored = claimed
        whole = read_json(stored)
        return OpenBatch(owner, stored.id, whole["key_id"], whole["reply"], whole.get("output_s"))

    async def _work(self, batch: OpenBatch) -> None:
        """Ends with the batch, or when another process has taken it over."""
        working = asyncio.create_task(self._answer_and_finish(batch))
        holding = asyncio.create_task(self._hold_lease(batch))
        try:
            await asyncio.wait({working, holding}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        except QuicksilverError as error:
            log.warning("a batch is interrupted: %s", error.message)
        except Exception as error:
            log.error("a batch is interrupted by %s", type(error).__name__)
        finally:
            for task in (working, holding):
                task.cancel()
            await asyncio.gather(working, holding, return_exceptions=True)

    async def _hold_lease(self, batch: OpenBatch) -> None:
        """Returns when the lease is lost: another process holds it, or it ran out while the store failed."""
        held_until = time.monotonic() + LEASE_S
        while True:
            await asyncio.sleep(RENEW_S)
            asked_at = time.monotonic()
            try:
                if not await self._services.storage.run(
                    lambda store: store.renew(batch.owner, BATCH, batch.id, self._process, LEASE_S)
                ):
                    return
                held_until = asked_at + LEASE_S
            except QuicksilverError:
                if time.monotonic() >= held_until:
                    return

    async def _answer_and_finish(self, batch: OpenBatch) -> None:
        try:
            caller = await self._caller(batch.key_id)
            content = await read_content(self._services.storage, batch.owner, batch.reply["input_file_id"])
        except QuicksilverError as error:
            # The store or the server fails, not the batch: it is claimed again when its lease has run out.
            if error.status >= 500:
                raise
            await self._fail(
                batch, [{"code": error.code, "message": error.message, "line": None, "param": error.param}]
            )
            return
        lines, errors = await asyncio.to_thread(read_lines, content, batch.reply["endpoint"])
        if errors:
            await self._fail(batch, errors)
            return
        batch = replace(batch, reply=dict(batch.reply), lines=lines)
        batch.reply["request_counts"]["total"] = len(lines)
        started_at = batch.reply["in_progress_at"] or _now()
        if await self._write(batch, status="in_progress", in_progress_at=started_at):
            await self._finish(batch, await self._answer_until_ended(batch, caller))

    async def _caller(self, key_id: str | None) -> Caller:
        accounts = self._services.accounts
        if accounts is None:
            return Caller()
        if key_id is None:
            raise AuthenticationFailed("this batch was made without a key")
        return Caller((await accounts.identity_of_key(key_id)).as_tenant)

    async def _answer_until_ended(self, batch: OpenBatch, caller: Caller) -> str:
        """The last status."""
        working = asyncio.create_task(self._answer_all(batch, caller))
        watching = asyncio.create_task(self._wait_for_end(batch))
        try:
            await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                return watching.result()
            working.result()
            return "completed"
        finally:
            for task in (working, watching):
                task.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)

    async def _wait_for_end(self, batch: OpenBatch) -> str:
        """The status of a batch that ends before its lines."""
        while _now() < batch.reply["expires_at"]:
            with suppress(QuicksilverError):
                if await self._is_cancelled(batch):
                    return "cancelled"
            await asyncio.sleep(RENEW_S)
        return "expired"

    async def _is_cancelled(self, batch: OpenBatch) -> bool:
        found = await self._services.storage.run(lambda store: store.get(batch.owner, CANCELLATION, batch.id))
        return found is not None

    async def _answer_all(self, batch: OpenBatch, caller: Caller) -> None:
        done, num_bytes = await self._services.storage.run(
            lambda store: (_answered(store, batch), store.num_kept_bytes(batch.owner, EVICTED))
        )
        left = deque(i for i in range(len(batch.lines)) if _line_id(batch.id, i) not in done)
        queue = LineQueue(left, self._services.config.stored_bytes - num_bytes)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._services.config.batch_lines, len(left))):
                group.create_task(self._answer_some(batch, caller, queue))

    async def _answer_some(self, batch: OpenBatch, caller: Caller, queue: LineQueue) -> None:
        while queue.left:
            number = queue.left.popleft()
            if queue.num_free_bytes > 0:
                await self._wait_for_others()
                headers = {"idempotency-key": f"{batch.id} {number}"}
                result = await answer_line(self._app, batch.lines[number], headers, caller)
            else:
                result = refuse_line(batch.lines[number], NO_ROOM)
            kind = FAILED_LINE if has_failed(result) else LINE
            stored = StoredObject(kind, _line_id(batch.id, number), write_json(result), batch.id)
            queue.num_free_bytes -= len(stored.body)
            await self._add_line(batch, stored)

    async def _add_line(self, batch: OpenBatch, stored: StoredObject) -> None:
        """Writes a result, which was charged, again and again until the store takes it or the lease is lost."""
        while True:
            try:
                await self._services.storage.run(lambda store: store.add(batch.owner, stored))
                return
            except QuicksilverError as error:
                if error.status < 500:
                    raise
            await asyncio.sleep(RENEW_S)

    async def _wait_for_others(self) -> None:
        """A line starts only when no request of another caller waits for the engine."""
        while (await self._services.engine.stats()).waiting:
            await asyncio.sleep(YIELD_S)

    async def _fail(self, batch: OpenBatch, errors: list[dict[str, Any]]) -> None:
        reply = {**batch.reply, "status": "failed", "failed_at": _now(), "errors": {"object": "list", "data": errors}}
        stored = _stored(batch, reply)
        await self._services.storage.run(
            lambda store: store.finish(batch.owner, stored, self._process, is_emptied=True)
        )

    async def _write(self, batch: OpenBatch, **changes: object) -> bool:
        """Whether this process still holds the lease; otherwise nothing is written."""
        batch.reply.update(changes)
        stored = _stored(batch, batch.reply, self._process)

        def change(present: StoredObject) -> StoredObject | None:
            return stored if present.is_open and present.leased_by == self._process else None

        return await self._services.storage.run(
            lambda store: store.update(batch.owner, BATCH, batch.id, change) is stored
        )

    async def _finish(self, batch: OpenBatch, status: str) -> None:
        if await self._write(batch, status="finalizing", finalizing_at=_now()):
            await self._services.storage.run(lambda store: finish_batch(store, batch, status, self._process))


def finish_batch(store: ObjectStore, batch: OpenBatch, status: str, process: str) -> None:
    """Writes the result files and closes the batch. The files have the same ids when this is done twice."""
    files = {}
    for kind, name in ((LINE, "output"), (FAILED_LINE, "error")):
        with SpooledTemporaryFile(SPOOL_BYTES) as content:
            count = 0
            for line in _results(store, batch, kind):
                content.write(line.body + b"\n")
                count += 1
            if kind == FAILED_LINE and status == "expired":
                content.write(_expired_lines(store, batch))
            size = content.tell()
            if size:
                expires_at = None if batch.output_s is None else _now() + batch.output_s
                described = describe(f"{batch.id}_{name}.jsonl", "batch_output", size, expires_at)
                reply = {**described, "id": f"file-{batch.id}-{name}"}
                write_file(store, batch.owner, reply, content)  # type: ignore[arg-type]
                files[f"{name}_file_id"] = reply["id"]
            batch.reply["request_counts"]["completed" if kind == LINE else "failed"] = count
    closed = {**batch.reply, **files, "status": status, f"{status}_at": _now()}
    store.finish(batch.owner, _stored(batch, closed), process, is_emptied=True)


def _answered(store: ObjectStore, batch: OpenBatch) -> set[str]:
    """The ids of the lines that have a result."""
    return {*store.ids(batch.owner, LINE, batch.id), *store.ids(batch.owner, FAILED_LINE, batch.id)}


def _results(store: ObjectStore, batch: OpenBatch, kind: str) -> Iterator[StoredObject]:
    after, has_more = "", True
    while has_more:
        page = store.page(batch.owner, kind, batch.id, after=after, limit=500, max_bytes=SPOOL_BYTES)
        found, has_more = page or ([], False)
        yield from found
        after = found[-1].id if found else after


def _expired_lines(store: ObjectStore, batch: OpenBatch) -> bytes:
    done = _answered(store, batch)
    error = {"code": "batch_expired", "message": "This line was not reached within the completion window."}
    left = [line for i, line in enumerate(batch.lines) if _line_id(batch.id, i) not in done]
    return b"".join(
        orjson.dumps(
            {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": line.custom_id, "response": None, "error": error}
        )
        + b"\n"
        for line in left
    )


def _stored(batch: OpenBatch, reply: Reply, process: str = "") -> StoredObject:
    body = write_json({"reply": reply, "key_id": batch.key_id, "output_s": batch.output_s})
    until = _now() + LEASE_S if process else 0
    return StoredObject(BATCH, batch.id, body, "", reply["created_at"], bool(process), process, until)


def _line_id(batch_id: str, number: int) -> str:
    return f"{batch_id}/{number:06d}"


def _now() -> int:
    return int(time.time())
