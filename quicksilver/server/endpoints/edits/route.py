"""`/v1/edit/completions` and `/v1/apply/completions`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.server.endpoints.chat.wire import ChatChunk, ChatCompletion
from quicksilver.server.endpoints.edits.apply import ApplyFormat, plan_apply
from quicksilver.server.endpoints.edits.edit import EditFormat, plan_edit
from quicksilver.server.endpoints.edits.wire import ApplyBody, EditBody
from quicksilver.server.endpoints.feedback.capture import captured_edit
from quicksilver.server.generation.respond import respond
from quicksilver.server.http.body import read_for_model
from quicksilver.server.http.fields import join_text
from quicksilver.server.http.guard import caller_of
from quicksilver.server.http.openapi import answers_or_streams, takes
from quicksilver.server.services import RouteKind

router = APIRouter(prefix="/v1")
RESPONSES = answers_or_streams(ChatCompletion, ChatChunk)


@router.post("/edit/completions", tags=["edit"], responses=RESPONSES, openapi_extra=takes(EditBody))
async def edit_completions(request: Request) -> Response:
    """The region at the cursor, rewritten. It is only right as a whole, so a stream sends it in one delta."""
    body, services = await read_for_model(request, EditBody, RouteKind.CODE)
    plan, edit = await plan_edit(body, services, caller_of(request).tenant)
    message = join_text(body.messages[0].content)
    form = await captured_edit(request, EditFormat(plan, edit, body, services), plan, message, edit)
    return await respond(request, services, body, plan, form)


@router.post("/apply/completions", tags=["apply"], responses=RESPONSES, openapi_extra=takes(ApplyBody))
async def apply_completions(request: Request) -> Response:
    """An update merged into a file."""
    body, services = await read_for_model(request, ApplyBody, RouteKind.CODE)
    plan = await plan_apply(body, services, caller_of(request).tenant)
    return await respond(request, services, body, plan.reply, ApplyFormat(plan, body, services))
