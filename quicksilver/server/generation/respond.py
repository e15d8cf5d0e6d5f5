"""What every paid route does around its own work: a tab for the caller, and the two ways to reply."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import orjson
from fastapi import Request
from starlette.responses import Response

from quicksilver.accounts.records import Order, SavedReply
from quicksilver.errors import QuicksilverError
from quicksilver.server.generation.billing import Tab
from quicksilver.server.generation.collect import Whole
from quicksilver.server.generation.job import Job, Recording
from quicksilver.server.generation.plan import Plan
from quicksilver.server.http.auth import caller_of
from quicksilver.server.http.errors import JSON, envelope
from quicksilver.server.http.json_reply import while_connected
from quicksilver.server.http.sse import EventStream, data_event
from quicksilver.server.services import services_of

Build = Callable[[Sequence[Whole]], Mapping[str, Any]]


def open_job(request: Request, plan: Plan) -> Job:
    services = services_of(request)
    request.state.reply_id = plan.id
    identity = caller_of(request).identity
    if services.accounts is None or identity is None:
        return Job(plan, services)
    key = request.headers.get("idempotency-key")
    idempotency = services.accounts.idempotency(key, _essence(request)) if key is not None else None
    order = Order(plan.id, services.config.card.id, plan.num_prompt, plan.max_output, idempotency)
    job = Job(plan, services, Tab(services.accounts, identity, order))
    request.state.refusal_headers = lambda: job.headers
    return job


def _essence(request: Request) -> bytes:
    """All that makes two requests the same one."""
    raw: bytes = request.state.raw_body
    return b"\n".join((request.method.encode(), request.scope["path"].encode(), raw))


async def reply_whole(request: Request, job: Job, build: Build) -> Response:
    """The answers as one JSON reply; an equal request with the same Idempotency-Key gets the same bytes."""
    saved = await job.tab.recall() if job.tab else None
    if saved is not None:
        return replayed(saved)
    body = await while_connected(request, _make_reply(job, build))
    return Response(body, 200, job.headers, media_type=JSON)


async def _make_reply(job: Job, build: Build) -> bytes:
    async with aclosing(job):
        await job.start()
        body = orjson.dumps(build(await job.gather()))
        await job.settle(SavedReply(200, body))
        return body


async def reply_stream(request: Request, job: Job, events: AsyncGenerator[bytes]) -> Response:
    """The answers as events. Whatever refuses them at once does so with a status of its own."""
    saved = await job.tab.recall() if job.tab else None
    if saved is not None:
        return replayed_stream(saved)
    if job.tab is not None and job.tab.is_idempotent:
        job.recording = Recording()
        events = _recorded(job, job.recording, events)
    await while_connected(request, job.start())
    return EventStream(events, job, services_of(request).config.keep_alive_comment_s, job.headers)


def replayed(saved: SavedReply) -> Response:
    return Response(saved.body, saved.status, {"idempotent-replayed": "true"}, media_type=JSON)


def replayed_stream(saved: SavedReply) -> Response:
    headers = {"idempotent-replayed": "true", "cache-control": "no-cache"}
    return Response(saved.body, saved.status, headers, media_type=EventStream.media_type)


async def _recorded(job: Job, recording: Recording, events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The events as they come, but for the last ones: they go out once the whole stream is in the books."""
    held: list[bytes] = []
    async with aclosing(events):
        async for chunk in events:
            recording.add(chunk)
            if recording.is_ending:
                held.append(chunk)
            else:
                yield chunk
    if not job.has_failed:
        try:
            await job.settle(recording.reply())
        except QuicksilverError as error:
            held = [data_event(envelope(error))]
    for chunk in held:
        yield chunk
