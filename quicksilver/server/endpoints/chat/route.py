"""`/v1/chat/completions`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.server.endpoints.chat.choice import plan_choice, without_writing_options
from quicksilver.server.endpoints.chat.format import ChatFormat
from quicksilver.server.endpoints.chat.plan import plan_chat
from quicksilver.server.endpoints.chat.wire import ChatBody, ChatChunk, ChatCompletion
from quicksilver.server.generation.respond import respond
from quicksilver.server.http.auth import caller_of
from quicksilver.server.http.body import read_body
from quicksilver.server.http.openapi import answers_or_streams, takes
from quicksilver.server.services import services_of

router = APIRouter(prefix="/v1", tags=["chat"])


@router.post(
    "/chat/completions", responses=answers_or_streams(ChatCompletion, ChatChunk), openapi_extra=takes(ChatBody)
)
async def chat_completions(request: Request) -> Response:
    services = services_of(request)
    body = await read_body(request, ChatBody, services.config)
    make_plan = plan_chat
    if body.choice is not None:
        body, make_plan = without_writing_options(body), plan_choice
    plan = await make_plan(body, services, caller_of(request).tenant)
    return await respond(request, body, plan, ChatFormat(plan, body, services))
