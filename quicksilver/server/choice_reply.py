"""The reply to a `choice`: a chat completion whose choice also has `probabilities`, whole or as a short stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import orjson
from fastapi import Request
from starlette.responses import Response

from quicksilver.accounts.records import SavedReply
from quicksilver.server.auth import caller_of
from quicksilver.server.chat_reply import Chunks, completion, finish_word
from quicksilver.server.choose import Ballot, Verdict, decide, plan_choice
from quicksilver.server.envelope import JSON
from quicksilver.server.job import Job
from quicksilver.server.plan import Plan
from quicksilver.server.reply import while_connected
from quicksilver.server.services import Services, services_of
from quicksilver.server.serving import open_job
from quicksilver.server.sse import DONE, EventStream, data_event
from quicksilver.server.wire.chat import ChatBody


async def reply_choice(request: Request, body: ChatBody) -> Response:
    services = services_of(request)
    ballot = await plan_choice(body, services, caller_of(request).tenant)
    job = open_job(request, ballot.plan)
    saved = await job.tab.recall() if job.tab and not body.stream else None
    if saved is not None:
        return Response(saved.body, saved.status, {"idempotent-replayed": "true"}, media_type=JSON)
    verdict, whole = await while_connected(request, _settle(ballot, job, services))
    if not body.stream:
        return Response(whole, 200, job.headers, media_type=JSON)
    has_usage = bool(body.stream_options and body.stream_options.include_usage)
    events = _events(verdict, ballot.plan, services.engine.info.fingerprint, has_usage=has_usage)
    return EventStream(events, job, services.config.keep_alive_comment_s, job.headers)


async def _settle(ballot: Ballot, job: Job, services: Services) -> tuple[Verdict, bytes]:
    async with aclosing(job):
        verdict = await decide(ballot, job, services)
        reply = completion(ballot.plan, [verdict.answer], None, services.engine.info.fingerprint)
        reply["choices"][0]["probabilities"] = verdict.probabilities
        whole = orjson.dumps(reply)
        await job.settle(SavedReply(200, whole))
        return verdict, whole


async def _events(verdict: Verdict, plan: Plan, fingerprint: str, *, has_usage: bool) -> AsyncGenerator[bytes]:
    chunks = Chunks(plan, fingerprint, has_usage=has_usage)
    yield data_event(chunks.opening(0))
    yield data_event(chunks.chunk(0, {"content": verdict.answer.content}))
    closing = chunks.chunk(0, {}, finish_word(verdict.answer.ended))
    closing["choices"][0]["probabilities"] = verdict.probabilities
    yield data_event(closing)
    if has_usage:
        yield data_event(chunks.usage([verdict.answer.ended]))
    yield DONE
