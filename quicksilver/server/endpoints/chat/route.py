"""`/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.server.endpoints.chat.choice_format import reply_choice
from quicksilver.server.endpoints.chat.format import Chunks, TokenNames, completion, summarise
from quicksilver.server.endpoints.chat.stream import StreamStyle, chat_events
from quicksilver.server.endpoints.chat.wire import ChatBody, ChatChunk, ChatCompletion
from quicksilver.server.generation.collect import Whole
from quicksilver.server.generation.job import Job
from quicksilver.server.generation.plan import Plan, plan_chat
from quicksilver.server.generation.respond import open_job, reply_stream, reply_whole
from quicksilver.server.http.auth import caller_of
from quicksilver.server.http.body import read_body
from quicksilver.server.http.openapi import answers_or_streams, takes
from quicksilver.server.services import Services, services_of

router = APIRouter(prefix="/v1", tags=["chat"])


@router.post(
    "/chat/completions", responses=answers_or_streams(ChatCompletion, ChatChunk), openapi_extra=takes(ChatBody)
)
async def chat_completions(request: Request) -> Response:
    services = services_of(request)
    body = await read_body(request, ChatBody, services.config)
    if body.choice is not None:
        return await reply_choice(request, body)
    job = open_job(request, await plan_chat(body, services, caller_of(request).tenant))
    if body.stream:
        return await reply_stream(request, job, stream(job, body, services))
    return await reply_whole(request, job, lambda answers: complete(answers, job.plan, body, services))


def stream(job: Job, body: ChatBody, services: Services) -> AsyncGenerator[bytes]:
    style = stream_style(body, job.plan, services)
    chunks = Chunks(job.plan, services.engine.info.fingerprint, has_usage=style.has_usage)
    return chat_events(job, chunks, services.tokenizer, style)


def stream_style(body: ChatBody, plan: Plan, services: Services) -> StreamStyle:
    options = body.stream_options
    return StreamStyle(
        has_usage=bool(options and options.include_usage),
        has_logprobs=bool(body.logprobs),
        has_alternatives=bool(body.logprobs and body.top_logprobs),
        has_summary=bool(body.reasoning_summary),
        may_think=plan.asks[0].opens_thinking,
        is_diffusing=bool(body.diffusing),
        shows_tokens=body.diffusion_detail == "tokens",
        min_gap_s=1 / services.config.frames_per_s,
    )


def complete(answers: Sequence[Whole], plan: Plan, body: ChatBody, services: Services) -> ChatCompletion:
    names = TokenNames(services.tokenizer) if body.logprobs else None
    reply = completion(plan, answers, names, services.engine.info.fingerprint)
    if body.reasoning_summary:
        reply["reasoning_summary"] = summarise(answers[0].reasoning, may_think=plan.asks[0].opens_thinking)
    return reply
