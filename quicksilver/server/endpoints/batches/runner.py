"""BatchRunner: works on the open batches, one at a time. Work continues after its process died.

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
from collections.abc import Sequence
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import FastAPI

from quicksilver.accounts.records import StoredObject
from quicksilver.errors import AuthenticationFailed, QuicksilverError
from quicksilver.server.endpoints.batches.lines import answer_line, has_failed, read_lines
from quicksilver.server.endpoints.batches.wire import BatchLine
from quicksilver.server.endpoints.files.store import describe, read_content, write_file
from quicksilver.server.http.auth import Caller
from quicksilver.server.services import Services
from quicksilver.server.storage import read_json, write_json

if TYPE_CHECKING:
    from quicksilver.accounts.objects import ObjectStore

log = logging.getLogger("quicksilver.server")

BATCH, CANCELLATION, LINE, FAILED_LINE = "batch", "batch_cancellation", "line", "failed_line"
LEASE_S = 10
RENEW_S = 2.0
# Between two looks for batches of processes that died.
POLL_S = 5.0
WINDOW_S = 24 * 3600
# While other requests wait for the engine, no line is started for this long.
YIELD_S = 0.05
SPOOL_BYTES = 2**22

Reply = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch whose lease this process holds."""

    owner: str
    id: str
    key_id: str | None
    reply: Reply
    lines: Sequence[BatchLine] = ()


class BatchRunner:
    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._process = uuid.uuid4().hex
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Works until no batch is left. Does nothing if it is running already."""
        is_at_work = self._task is not None and not self._task.done()
        if self._task is None or not is_at_work or self._task.get_loop() is not asyncio.get_running_loop():
            self._task = asyncio.create_task(self._run())

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
        try:
            while claimed := await self._services.storage.run(lambda s: s.claim(BATCH, self._process, LEASE_S)):
                owner, stored = claimed
                whole = read_json(stored)
                await self._work(OpenBatch(owner, stored.id, whole["key_id"], whole["reply"]))
        except QuicksilverError as error:
            log.warning("a batch is interrupted: %s", error.message)
        except Exception as error:
            log.error("a batch is interrupted by %s", type(error).__name__)

    async def _work(self, batch: OpenBatch) -> None:
        try:
            caller = await self._caller(batch.key_id)
            content = await read_content(self._services.storage, batch.owner, batch.reply["input_file_id"])
        except QuicksilverError as error:
            await self._fail(
                batch, [{"code": error.code, "message": error.message, "line": None, "param": error.param}]
            )
            return
        lines, errors = await asyncio.to_thread(read_lines, content, batch.reply["endpoint"])
        if errors:
            await self._fail(batch, errors)
            return
        batch = OpenBatch(batch.owner, batch.id, batch.key_id, dict(batch.reply), lines)
        batch.reply["request_counts"]["total"] = len(lines)
        await self._write(batch, status="in_progress", in_progress_at=batch.reply["in_progress_at"] or _now())
        ending = await self._answer_until_ended(batch, caller)
        if ending is not None:
            await self._finish(batch, ending)

    async def _caller(self, key_id: str | None) -> Caller:
        accounts = self._services.accounts
        if accounts is None:
            return Caller()
        if key_id is None:
            raise AuthenticationFailed("this batch was made without a key")
        return Caller((await accounts.identity_of_key(key_id)).as_tenant)

    async def _answer_until_ended(self, batch: OpenBatch, caller: Caller) -> str | None:
        """The last status; None if another process has taken the batch over."""
        working = asyncio.create_task(self._answer_all(batch, caller))
        watching = asyncio.create_task(self._hold_lease(batch))
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

    async def _hold_lease(self, batch: OpenBatch) -> str | None:
        while True:
            if _now() >= batch.reply["expires_at"]:
                return "expired"
            if await self._is_cancelled(batch):
                return "cancelled"
            await asyncio.sleep(RENEW_S)
            if not await self._services.storage.run(
                lambda store: store.renew(batch.owner, BATCH, batch.id, self._process, LEASE_S)
            ):
                return None

    async def _is_cancelled(self, batch: OpenBatch) -> bool:
        found = await self._services.storage.run(lambda store: store.get(batch.owner, CANCELLATION, batch.id))
        return found is not None

    async def _answer_all(self, batch: OpenBatch, caller: Caller) -> None:
        done = await self._services.storage.run(
            lambda store: {*store.ids(batch.owner, LINE, batch.id), *store.ids(batch.owner, FAILED_LINE, batch.id)}
        )
        left = deque(i for i in range(len(batch.lines)) if _line_id(batch.id, i) not in done)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._services.config.batch_lines, len(left))):
                group.create_task(self._answer_some(batch, caller, left))

    async def _answer_some(self, batch: OpenBatch, caller: Caller, left: deque[int]) -> None:
        while left:
            number = left.popleft()
            await self._wait_for_others()
            headers = {"idempotency-key": f"{batch.id} {number}"}
            result = await answer_line(self._app, batch.lines[number], headers, caller)
            kind = FAILED_LINE if has_failed(result) else LINE
            stored = StoredObject(kind, _line_id(batch.id, number), write_json(result), batch.id)
            await self._services.storage.run(lambda store, stored=stored: store.add(batch.owner, stored))  # type: ignore[misc]

    async def _wait_for_others(self) -> None:
        """A line starts only when no request of another caller waits for the engine."""
        while (await self._services.engine.stats()).waiting:
            await asyncio.sleep(YIELD_S)

    async def _fail(self, batch: OpenBatch, errors: list[dict[str, Any]]) -> None:
        reply = {**batch.reply, "status": "failed", "failed_at": _now(), "errors": {"object": "list", "data": errors}}
        stored = _stored(batch, reply)
        await self._services.storage.run(lambda store: store.finish(batch.owner, stored, self._process))

    async def _write(self, batch: OpenBatch, **changes: object) -> None:
        batch.reply.update(changes)
        stored = _stored(batch, batch.reply, self._process)
        await self._services.storage.run(lambda store: store.put(batch.owner, [stored]))

    async def _finish(self, batch: OpenBatch, status: str) -> None:
        await self._write(batch, status="finalizing", finalizing_at=_now())
        await self._services.storage.run(lambda store: finish_batch(store, batch, status, self._process))


def finish_batch(store: ObjectStore, batch: OpenBatch, status: str, process: str) -> None:
    """Writes the result files and closes the batch. The files have the same ids when this is done twice."""
    files = {}
    for kind, name in ((LINE, "output"), (FAILED_LINE, "error")):
        with SpooledTemporaryFile(SPOOL_BYTES) as content:
            count, after = 0, ""
            while found := store.find(batch.owner, kind, batch.id, after=after, limit=500):
                content.write(b"".join(line.body + b"\n" for line in found))
                count, after = count + len(found), found[-1].id
            if kind == FAILED_LINE and status == "expired":
                content.write(_expired_lines(store, batch))
            size = content.tell()
            if size:
                reply = {**describe(f"{batch.id}_{name}.jsonl", "batch_output", size), "id": f"file-{batch.id}-{name}"}
                write_file(store, batch.owner, reply, content)  # type: ignore[arg-type]
                files[f"{name}_file_id"] = reply["id"]
            batch.reply["request_counts"]["completed" if kind == LINE else "failed"] = count
    closed = {**batch.reply, **files, "status": status, f"{status}_at": _now()}
    if store.finish(batch.owner, _stored(batch, closed), process):
        store.delete_inside(batch.owner, batch.id)


def _expired_lines(store: ObjectStore, batch: OpenBatch) -> bytes:
    done = {*store.ids(batch.owner, LINE, batch.id), *store.ids(batch.owner, FAILED_LINE, batch.id)}
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
    body = write_json({"reply": reply, "key_id": batch.key_id})
    until = _now() + LEASE_S if process else 0
    return StoredObject(BATCH, batch.id, body, "", reply["created_at"], bool(process), process, until)


def _line_id(batch_id: str, number: int) -> str:
    return f"{batch_id}/{number:06d}"


def _now() -> int:
    return int(time.time())
