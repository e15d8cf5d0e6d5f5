"""`/v1/responses`: OpenAI's newer dialect. The body is planned as a chat body; the reply has a format of its own."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.server.endpoints.chat.plan import plan_chat
from quicksilver.server.endpoints.responses.format import ResponsesFormat
from quicksilver.server.endpoints.responses.plan import as_chat
from quicksilver.server.endpoints.responses.wire import ResponseReply, ResponsesBody
from quicksilver.server.generation.respond import respond
from quicksilver.server.http.auth import caller_of
from quicksilver.server.http.body import read_body
from quicksilver.server.http.openapi import answers_or_streams, takes
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
    return await respond(request, body, plan, ResponsesFormat(plan, body, services))
