"""The reply to a `choice`: a chat completion whose choice also has `probabilities`, whole or as a short stream."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from functools import partial

import orjson
from fastapi import Request
from starlette.responses import Response

from quicksilver.accounts.records import SavedReply
from quicksilver.server.endpoints.chat.choice import Ballot, Verdict, decide, plan_choice
from quicksilver.server.endpoints.chat.format import Chunks, completion, finish_word
from quicksilver.server.endpoints.chat.wire import ChatBody
from quicksilver.server.generation.job import Job
from quicksilver.server.generation.plan import Plan
from quicksilver.server.generation.respond import open_job, replayed, replayed_stream
from quicksilver.server.http.auth import caller_of
from quicksilver.server.http.errors import JSON
from quicksilver.server.http.json_reply import while_connected
from quicksilver.server.http.sse import DONE, EventStream, data_event
from quicksilver.server.services import Services, services_of

Tell = Callable[[Verdict, Plan, str], bytes]


async def reply_choice(request: Request, body: ChatBody) -> Response:
    services = services_of(request)
    ballot = await plan_choice(body, services, caller_of(request).tenant)
    job = open_job(request, ballot.plan)
    saved = await job.tab.recall() if job.tab else None
    if saved is not None:
        return replayed_stream(saved) if body.stream else replayed(saved)
    has_usage = bool(body.stream_options and body.stream_options.include_usage)
    tell = partial(_stream, has_usage=has_usage) if body.stream else _whole
    told = await while_connected(request, _settle(ballot, job, services, tell))
    if body.stream:
        return Response(told, 200, {"cache-control": "no-cache", **job.headers}, media_type=EventStream.media_type)
    return Response(told, 200, job.headers, media_type=JSON)


async def _settle(ballot: Ballot, job: Job, services: Services, tell: Tell) -> bytes:
    async with aclosing(job):
        verdict = await decide(ballot, job, services)
        told = tell(verdict, ballot.plan, services.engine.info.fingerprint)
        await job.settle(SavedReply(200, told))
        return told


def _whole(verdict: Verdict, plan: Plan, fingerprint: str) -> bytes:
    reply = completion(plan, [verdict.answer], None, fingerprint)
    reply["choices"][0]["probabilities"] = verdict.probabilities
    return orjson.dumps(reply)


def _stream(verdict: Verdict, plan: Plan, fingerprint: str, *, has_usage: bool) -> bytes:
    """A verdict falls all at once, so its events are sent together."""
    chunks = Chunks(plan, fingerprint, has_usage=has_usage)
    closing = chunks.chunk(0, {}, finish_word(verdict.answer.ended))
    closing["choices"][0]["probabilities"] = verdict.probabilities
    told = [chunks.opening(0), chunks.chunk(0, {"content": verdict.answer.content}), closing]
    if has_usage:
        told.append(chunks.usage([verdict.answer.ended]))
    return b"".join(map(data_event, told)) + DONE
