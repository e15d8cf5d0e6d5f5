"""`/v1/edit/completions`: the region under the cursor, rewritten."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.server.endpoints.chat.format import Chunks, completion
from quicksilver.server.endpoints.chat.wire import ChatChunk, ChatCompletion
from quicksilver.server.endpoints.edits.edit_plan import finish_edit, plan_edit
from quicksilver.server.endpoints.edits.wire import EditBody
from quicksilver.server.generation.events import SideBySide, reply_events
from quicksilver.server.generation.respond import open_job, reply_stream, reply_whole
from quicksilver.server.generation.single_delta import WholeTeller
from quicksilver.server.http.auth import caller_of
from quicksilver.server.http.body import read_body
from quicksilver.server.http.openapi import answers_or_streams, takes
from quicksilver.server.services import services_of

router = APIRouter(prefix="/v1", tags=["edit"])


@router.post(
    "/edit/completions", responses=answers_or_streams(ChatCompletion, ChatChunk), openapi_extra=takes(EditBody)
)
async def edit_completions(request: Request) -> Response:
    """A reply is only right as a whole, so a streamed one comes in one piece."""
    services = services_of(request)
    body = await read_body(request, EditBody, services.config)
    edit = await plan_edit(body, services, caller_of(request).tenant)
    job, fingerprint = open_job(request, edit.plan), services.engine.info.fingerprint
    if not body.stream:
        return await reply_whole(
            request,
            job,
            lambda answers: completion(edit.plan, [finish_edit(answers[0], edit.request)], None, fingerprint),
        )
    has_usage = bool(body.stream_options and body.stream_options.include_usage)
    chunks = Chunks(edit.plan, fingerprint, has_usage=has_usage)
    teller = WholeTeller(chunks, lambda answer: finish_edit(answer, edit.request))
    events = reply_events(job, SideBySide([teller]), chunks.usage if has_usage else None)
    return await reply_stream(request, job, events)
