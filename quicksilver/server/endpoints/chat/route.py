"""`/v1/chat/completions`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.server.endpoints.chat.choice import plan_choice, without_writing_options
from quicksilver.server.endpoints.chat.format import ChatFormat
from quicksilver.server.endpoints.chat.plan import plan_chat, with_effort
from quicksilver.server.endpoints.chat.wire import ChatBody, ChatChunk, ChatCompletion
from quicksilver.server.generation.respond import respond
from quicksilver.server.http.body import choose_model, read_body
from quicksilver.server.http.guard import caller_of
from quicksilver.server.http.openapi import answers_or_streams, takes
from quicksilver.server.hybrid.respond import respond_auto
from quicksilver.server.hybrid.rules import profile_of
from quicksilver.server.services import RouteKind, services_of

router = APIRouter(prefix="/v1", tags=["chat"])


@router.post(
    "/chat/completions", responses=answers_or_streams(ChatCompletion, ChatChunk), openapi_extra=takes(ChatBody)
)
async def chat_completions(request: Request) -> Response:
    services, tenant = services_of(request), caller_of(request).tenant
    body = with_effort(await read_body(request, ChatBody, services.config))
    if services.hybrid is not None and (profile := profile_of(body.model)) is not None:
        return await respond_auto(request, body, services, services.hybrid, profile)
    body, services = await choose_model(request, body, RouteKind.CHAT)
    if body.choice is not None:
        body = without_writing_options(body)
        plan = await plan_choice(body, services, tenant)
    else:
        plan = await plan_chat(body, services, tenant)
    return await respond(request, services, body, plan, ChatFormat(plan, body, services, tenant))
