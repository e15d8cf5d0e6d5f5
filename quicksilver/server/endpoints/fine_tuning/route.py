"""`/v1/fine_tuning/jobs`: create, list, retrieve, events, checkpoints, cancel, pause and resume.

Jobs are stored objects. A trainer process works on them; this module never trains.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.accounts.records import StoredObject
from quicksilver.errors import InvalidRequest, NotFound
from quicksilver.server.endpoints.files.store import get_file
from quicksilver.server.endpoints.fine_tuning.wire import JobBody, JobReply, MethodBody
from quicksilver.server.http.body import read_body
from quicksilver.server.http.guard import Caller, caller_of
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.http.list_query import ListQuery, ObjectList, wanted_metadata
from quicksilver.server.http.openapi import answers, answers_read, refusals, takes
from quicksilver.server.http.query import asks, read_query
from quicksilver.server.services import RouteKind, Services, services_of
from quicksilver.server.storage import list_reply, read_json
from quicksilver.tuning.hyperparameters import TRAINED, checked
from quicksilver.tuning.jobs import CHECKPOINT, EVENT, JOB, JobStore, TuningJob, new_job
from quicksilver.tuning.models import check_suffix

router = APIRouter(prefix="/v1/fine_tuning/jobs", tags=["fine_tuning"])

CHANGED = {**answers_read(JobReply), **refusals((409,))}


@router.post("", responses=answers(JobReply), openapi_extra=takes(JobBody))
async def create_job(request: Request) -> Response:
    services, caller = services_of(request), caller_of(request)
    services.storage.require_on("training_file")
    if not services.config.tunes:
        raise InvalidRequest("This server does not fine-tune; start it without --no-fine-tuning.", code="not_supported")
    body = await read_body(request, JobBody, services.config)
    method, model = described_method(body), await _base(services, caller, body.model)
    check_suffix(body.suffix)
    await _check_file(services, caller.tenant, body.training_file, "training_file")
    if body.validation_file is not None:
        await _check_file(services, caller.tenant, body.validation_file, "validation_file")
    identity = caller.identity
    reply = new_job(
        model,
        body.training_file,
        method,
        validation_file=body.validation_file,
        suffix=body.suffix,
        seed=secrets.randbelow(2**31) if body.seed is None else body.seed,
        metadata=dict(body.metadata) if body.metadata is not None else None,
        organization_id=identity.org_id if identity else "",
    )
    job = TuningJob(caller.tenant, reply, identity.key_id if identity else None)
    await services.storage.run(lambda store: _create(JobStore(store), job, services.config.tuning_jobs))
    return json_response(job.reply)


def _create(jobs: JobStore, job: TuningJob, max_jobs: int) -> None:
    jobs.check_quota(job.owner, max_jobs)
    jobs.create(job)


def described_method(body: JobBody) -> dict[str, Any]:
    """The method with its hyperparameters, `auto` where none is given."""
    method = body.method or MethodBody(type="supervised")
    options = getattr(method, method.type, None) if method.type in TRAINED else None
    given = options.hyperparameters if options is not None else None
    if given is None and method.type == "supervised":
        given = body.hyperparameters
    chosen = checked(method.type, given.model_dump(exclude_none=True) if given is not None else {})
    return {"type": method.type, method.type: {"hyperparameters": chosen}}


async def _base(services: Services, caller: Caller, name: str) -> str:
    """The id of the model to tune."""
    model = services.model_names.find(name, RouteKind.CHAT)
    if caller.identity is not None:
        caller.identity.require_model(model)
        assert services.accounts is not None
        await services.accounts.check_budgets(caller.identity)
    return model


async def _check_file(services: Services, owner: str, file_id: str, param: str) -> None:
    try:
        file = await get_file(services.storage, owner, file_id)
    except NotFound:
        raise InvalidRequest(f"{param}: there is no file with this id", param=param, code="file_not_found") from None
    if file["purpose"] != "fine-tune":
        raise InvalidRequest(f"{param}: the purpose of the file is not `fine-tune`", param=param)


@router.get("", responses=answers_read(ObjectList), openapi_extra=asks(ListQuery))
async def list_jobs(request: Request) -> Response:
    """All jobs, those with the metadata of the query, or, with `metadata=null`, those without any."""
    storage, owner = services_of(request).storage, caller_of(request).tenant
    wanted, only_bare = wanted_metadata(request), request.query_params.get("metadata") == "null"

    def read(stored: StoredObject) -> dict[str, Any] | None:
        reply: dict[str, Any] = read_json(stored)["reply"]
        metadata = reply["metadata"] or {}
        return reply if wanted.items() <= metadata.items() and not (only_bare and metadata) else None

    return json_response(list_reply(*await storage.matching(owner, JOB, read_query(request, ListQuery), read)))


@router.get("/{job_id}", responses=answers_read(JobReply))
async def get_job(request: Request, job_id: str) -> Response:
    services, owner = services_of(request), caller_of(request).tenant
    return json_response(read_json(await services.storage.get(owner, JOB, job_id))["reply"])


@router.get("/{job_id}/events", responses=answers_read(ObjectList), openapi_extra=asks(ListQuery))
async def list_events(request: Request, job_id: str) -> Response:
    return await _parts(request, job_id, EVENT)


@router.get("/{job_id}/checkpoints", responses=answers_read(ObjectList), openapi_extra=asks(ListQuery))
async def list_checkpoints(request: Request, job_id: str) -> Response:
    return await _parts(request, job_id, CHECKPOINT)


async def _parts(request: Request, job_id: str, kind: str) -> Response:
    services, owner = services_of(request), caller_of(request).tenant
    await services.storage.get(owner, JOB, job_id)
    found, has_more = await services.storage.page(owner, kind, read_query(request, ListQuery), job_id)
    return json_response(list_reply([read_json(each) for each in found], has_more))


@router.post("/{job_id}/cancel", responses=CHANGED)
async def cancel_job(request: Request, job_id: str) -> Response:
    return await _changed(request, job_id, JobStore.cancel)


@router.post("/{job_id}/pause", responses=CHANGED)
async def pause_job(request: Request, job_id: str) -> Response:
    return await _changed(request, job_id, JobStore.pause)


@router.post("/{job_id}/resume", responses=CHANGED)
async def resume_job(request: Request, job_id: str) -> Response:
    return await _changed(request, job_id, JobStore.resume)


async def _changed(request: Request, job_id: str, change: Callable[[JobStore, str, str], TuningJob | None]) -> Response:
    services, owner = services_of(request), caller_of(request).tenant
    await services.storage.get(owner, JOB, job_id)
    job = await services.storage.run(lambda store: change(JobStore(store), owner, job_id))
    if job is None:
        raise NotFound("There is no fine-tuning job with this id.")
    return json_response(job.reply)
