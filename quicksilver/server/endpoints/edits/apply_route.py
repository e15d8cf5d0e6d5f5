"""`/v1/apply/completions`: an update merged into a file."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.server.endpoints.chat.format import Chunks, completion
from quicksilver.server.endpoints.chat.wire import ChatChunk, ChatCompletion
from quicksilver.server.endpoints.edits.apply_plan import ApplyTeller, joint_end, merged_text, plan_apply
from quicksilver.server.endpoints.edits.wire import ApplyBody
from quicksilver.server.generation.collect import Whole
from quicksilver.server.generation.events import reply_events
from quicksilver.server.generation.respond import open_job, reply_stream, reply_whole
from quicksilver.server.generation.usage import usage_reply
from quicksilver.server.http.auth import caller_of
from quicksilver.server.http.body import read_body
from quicksilver.server.http.openapi import answers_or_streams, takes
from quicksilver.server.services import services_of

router = APIRouter(prefix="/v1", tags=["apply"])


@router.post(
    "/apply/completions", responses=answers_or_streams(ChatCompletion, ChatChunk), openapi_extra=takes(ApplyBody)
)
async def apply_completions(request: Request) -> Response:
    services = services_of(request)
    body = await read_body(request, ApplyBody, services.config)
    apply = await plan_apply(body, services, caller_of(request).tenant)
    job, fingerprint = open_job(request, apply.plan), services.engine.info.fingerprint
    if not body.stream:

        def build(answers: Sequence[Whole]) -> ChatCompletion:
            ended = [answer.ended for answer in answers]
            merged = Whole(content=merged_text(apply, answers), ended=joint_end(ended))
            return {**completion(apply.plan, [merged], None, fingerprint), "usage": usage_reply(ended)}

        return await reply_whole(request, job, build)
    has_usage = bool(body.stream_options and body.stream_options.include_usage)
    chunks = Chunks(apply.plan, fingerprint, has_usage=has_usage)
    events = reply_events(job, ApplyTeller(apply, chunks), chunks.usage if has_usage else None)
    return await reply_stream(request, job, events)
