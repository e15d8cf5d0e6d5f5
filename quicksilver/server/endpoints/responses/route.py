"""`/v1/responses`: OpenAI's newer dialect, over the same plans and jobs as chat."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.server.endpoints.chat.format import TokenNames
from quicksilver.server.endpoints.responses.format import Event, ResponseTeller
from quicksilver.server.endpoints.responses.plan import as_chat
from quicksilver.server.endpoints.responses.wire import ResponseReply, ResponsesBody
from quicksilver.server.generation.events import as_refusal
from quicksilver.server.generation.job import Job
from quicksilver.server.generation.plan import plan_chat
from quicksilver.server.generation.respond import open_job, reply_stream, reply_whole
from quicksilver.server.http.auth import caller_of
from quicksilver.server.http.body import read_body
from quicksilver.server.http.openapi import answers_or_streams, takes
from quicksilver.server.http.sse import named_event
from quicksilver.server.services import services_of

router = APIRouter(prefix="/v1", tags=["responses"])


@router.post(
    "/responses", responses=answers_or_streams(ResponseReply, ResponseReply), openapi_extra=takes(ResponsesBody)
)
async def responses(request: Request) -> Response:
    services = services_of(request)
    body = await read_body(request, ResponsesBody, services.config)
    plan = await plan_chat(as_chat(body), services, caller_of(request).tenant)
    plan = replace(plan, id=plan.id.replace("chatcmpl-", "resp_").replace("-", ""))
    job, teller = open_job(request, plan), ResponseTeller(plan, body, TokenNames(services.tokenizer))
    if body.stream:
        return await reply_stream(request, job, response_events(job, teller))
    return await reply_whole(request, job, lambda answers: teller.whole(answers[0]))


async def response_events(job: Job, teller: ResponseTeller) -> AsyncGenerator[bytes]:
    """Named and numbered events; the last one carries the whole response."""
    number = 0
    async with aclosing(_events(job, teller)) as events:
        async for event in events:
            yield named_event(event["type"], {**event, "sequence_number": number})
            number += 1


async def _events(job: Job, teller: ResponseTeller) -> AsyncGenerator[Event]:
    for event in teller.begin():
        yield event
    try:
        async for _, piece in job.delivered_pieces():
            for event in teller.tell(piece):
                yield event
    except Exception as error:
        for event in teller.fail(as_refusal(error)):
            yield event
