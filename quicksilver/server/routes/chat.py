"""`/v1/chat/completions`."""

from __future__ import annotations

from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.server.body import read_body
from quicksilver.server.chat_reply import Chunks, TokenNames, completion, summarise
from quicksilver.server.chat_stream import StreamStyle, chat_events
from quicksilver.server.job import Job
from quicksilver.server.plan import plan_chat
from quicksilver.server.reply import json_response, while_connected
from quicksilver.server.schema import answers_or_streams, takes
from quicksilver.server.services import Services, services_of
from quicksilver.server.sse import EventStream
from quicksilver.server.wire.chat import ChatBody, ChatChunk, ChatCompletion

router = APIRouter(prefix="/v1", tags=["chat"])


@router.post(
    "/chat/completions", responses=answers_or_streams(ChatCompletion, ChatChunk), openapi_extra=takes(ChatBody)
)
async def chat_completions(request: Request) -> Response:
    services = services_of(request)
    body = await read_body(request, ChatBody, services.config)
    plan = await plan_chat(body, services, tenant="")
    job = Job(plan, services)
    if body.stream:
        await while_connected(request, job.start())
        return stream(job, body, services)
    return json_response(await while_connected(request, complete(job, body, services)))


def stream(job: Job, body: ChatBody, services: Services) -> Response:
    style = stream_style(body, job, services)
    chunks = Chunks(job.plan, services.engine.info.fingerprint, has_usage=style.has_usage)
    events = chat_events(job, chunks, services.tokenizer, style)
    return EventStream(events, job, services.config.keep_alive_comment_s)


def stream_style(body: ChatBody, job: Job, services: Services) -> StreamStyle:
    options = body.stream_options
    return StreamStyle(
        has_usage=bool(options and options.include_usage),
        has_logprobs=bool(body.logprobs),
        has_summary=bool(body.reasoning_summary),
        may_think=job.plan.asks[0].opens_thinking,
        is_diffusing=bool(body.diffusing),
        shows_tokens=body.diffusion_detail == "tokens",
        min_gap_s=1 / services.config.frames_per_s,
    )


async def complete(job: Job, body: ChatBody, services: Services) -> ChatCompletion:
    async with aclosing(job):
        await job.start()
        wholes = await job.gather()
    names = TokenNames(services.tokenizer) if body.logprobs else None
    reply = completion(job.plan, wholes, names, services.engine.info.fingerprint)
    if body.reasoning_summary:
        reply["reasoning_summary"] = summarise(wholes[0].reasoning, may_think=job.plan.asks[0].opens_thinking)
    return reply
