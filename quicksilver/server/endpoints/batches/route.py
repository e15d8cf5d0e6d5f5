"""`/v1/batches`: create, list, retrieve and cancel."""

from __future__ import annotations

import time
import uuid
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.accounts.records import StoredObject
from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.batches.runner import (
    BATCH,
    CANCELLATION,
    FAILED_LINE,
    LINE,
    WINDOW_S,
    BatchRunner,
)
from quicksilver.server.endpoints.batches.wire import BatchBody, BatchReply
from quicksilver.server.endpoints.files.store import get_file
from quicksilver.server.http.body import read_body
from quicksilver.server.http.guard import caller_of
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.http.list_query import ListQuery, ObjectList
from quicksilver.server.http.openapi import answers, answers_read, takes
from quicksilver.server.http.query import asks, read_query
from quicksilver.server.services import services_of
from quicksilver.server.storage import list_reply, read_json, write_json

router = APIRouter(prefix="/v1/batches", tags=["batches"])

ENDED = ("failed", "completed", "expired", "cancelled")


@router.post("", responses=answers(BatchReply), openapi_extra=takes(BatchBody))
async def create_batch(request: Request) -> Response:
    services, caller = services_of(request), caller_of(request)
    services.storage.require_on("input_file_id")
    body = await read_body(request, BatchBody, services.config)
    file = await get_file(services.storage, caller.tenant, body.input_file_id)
    if file["purpose"] != "batch":
        raise InvalidRequest("input_file_id: the purpose of the file is not `batch`", param="input_file_id")
    reply = new_batch(body)
    kept = {
        "reply": reply,
        "key_id": caller.identity.key_id if caller.identity else None,
        "output_s": body.output_expires_after.seconds if body.output_expires_after else None,
    }
    stored = StoredObject(BATCH, reply["id"], write_json(kept), created_at=reply["created_at"], is_open=True)
    await services.storage.put(caller.tenant, stored)
    runner_of(request).start()
    return json_response(reply)


def new_batch(body: BatchBody) -> dict[str, Any]:
    now = int(time.time())
    times = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    return {
        "id": f"batch_{uuid.uuid4().hex}",
        "object": "batch",
        "endpoint": body.endpoint,
        "errors": None,
        "input_file_id": body.input_file_id,
        "completion_window": body.completion_window,
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": now,
        "expires_at": now + WINDOW_S,
        **{f"{name}_at": None for name in times},
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "metadata": dict(body.metadata) if body.metadata is not None else None,
    }


@router.get("", responses=answers_read(ObjectList), openapi_extra=asks(ListQuery))
async def list_batches(request: Request) -> Response:
    services, owner = services_of(request), caller_of(request).tenant
    found, has_more = await services.storage.page(owner, BATCH, read_query(request, ListQuery))
    return json_response(list_reply([read_json(each)["reply"] for each in found], has_more))


@router.get("/{batch_id}", responses=answers_read(BatchReply))
async def get_batch(request: Request, batch_id: str) -> Response:
    return json_response(await _batch(request, batch_id))


@router.post("/{batch_id}/cancel", responses=answers_read(BatchReply))
async def cancel_batch(request: Request, batch_id: str) -> Response:
    services, owner = services_of(request), caller_of(request).tenant
    reply = await _batch(request, batch_id)
    if reply["status"] not in ENDED:
        mark = StoredObject(CANCELLATION, batch_id, write_json({"at": int(time.time())}), batch_id)
        await services.storage.run(lambda store: store.add(owner, mark))
        runner_of(request).start()
        reply = await _batch(request, batch_id)
    return json_response(reply)


async def _batch(request: Request, batch_id: str) -> dict[str, Any]:
    """The stored batch; while it is at work, with the present counts and a cancellation that was asked for."""
    storage, owner = services_of(request).storage, caller_of(request).tenant
    reply: dict[str, Any] = read_json(await storage.get(owner, BATCH, batch_id))["reply"]
    if reply["status"] in ENDED:
        return reply
    counts = await storage.run(lambda s: [s.count(owner, kind, batch_id) for kind in (LINE, FAILED_LINE)])
    reply["request_counts"] |= dict(zip(("completed", "failed"), counts, strict=True))
    mark = await storage.run(lambda store: store.get(owner, CANCELLATION, batch_id))
    if mark is not None:
        reply |= {"status": "cancelling", "cancelling_at": read_json(mark)["at"]}
    return reply


def runner_of(request: Request) -> BatchRunner:
    runner: BatchRunner = request.app.state.batches
    return runner
