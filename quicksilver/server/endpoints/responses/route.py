"""`/v1/responses`: OpenAI's newer API. The body is planned as a chat body; the reply has a format of its own."""

from __future__ import annotations

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.accounts.records import SavedReply
from quicksilver.errors import InvalidRequest, QuicksilverError
from quicksilver.server.endpoints.chat.plan import read_effort, read_tools, render
from quicksilver.server.endpoints.responses.background import start_background
from quicksilver.server.endpoints.responses.compact import CompactFormat, plan_compaction
from quicksilver.server.endpoints.responses.format import ResponsesFormat
from quicksilver.server.endpoints.responses.plan import as_chat, plan_response
from quicksilver.server.endpoints.responses.replay import stream_stored
from quicksilver.server.endpoints.responses.turn import RESPONSE, ResponseTurn, open_turn
from quicksilver.server.endpoints.responses.wire import (
    CompactBody,
    CompactionReply,
    InputTokensReply,
    ResponseReply,
    ResponsesBody,
)
from quicksilver.server.generation.job import ReplyJob
from quicksilver.server.generation.respond import open_job, rate_limit_headers, replay, respond
from quicksilver.server.http.body import read_for_model
from quicksilver.server.http.errors import error_response
from quicksilver.server.http.guard import caller_of
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.http.openapi import answers, answers_or_streams, takes
from quicksilver.server.services import RouteKind, services_of

router = APIRouter(prefix="/v1", tags=["responses"])


@router.post(
    "/responses", responses=answers_or_streams(ResponseReply, ResponseReply), openapi_extra=takes(ResponsesBody)
)
async def responses(request: Request) -> Response:
    body, services = await read_for_model(request, ResponsesBody, RouteKind.CHAT)
    tenant = caller_of(request).tenant
    body, turn = await open_turn(body, services.storage, tenant)
    plan = await plan_response(body, services, tenant, turn.checked_history)
    form = ResponsesFormat(plan, body, services, turn)
    if body.background:
        job = open_job(request, services, body, plan)
        return await _in_background(request, job, form, turn, is_streamed=bool(body.stream))
    return await respond(request, services, body, plan, form)


async def _in_background(
    request: Request, job: ReplyJob, form: ResponsesFormat, turn: ResponseTurn, *, is_streamed: bool
) -> Response:
    services = services_of(request)
    services.storage.require_on("background")
    if not turn.is_stored:
        raise InvalidRequest("background: needs store to be true", param="background")
    saved = await job.billing.find_saved_reply() if job.billing else None
    if saved is not None:
        return await _repeat(request, saved, turn.owner, is_streamed=is_streamed)
    try:
        reply = await start_background(job, form, turn, services)
    except QuicksilverError as error:
        return error_response(error, rate_limit_headers(job.billing))
    if is_streamed:
        return stream_stored(request, turn.owner, reply["id"])
    return json_response(reply, rate_limit_headers(job.billing))


async def _repeat(request: Request, saved: SavedReply, owner: str, *, is_streamed: bool) -> Response:
    """The reply to an equal request before; a stream is that of the stored response, which must still exist."""
    if not is_streamed:
        return replay(saved, None)
    response_id = orjson.loads(saved.body)["id"]
    await services_of(request).storage.get(owner, RESPONSE, response_id)
    return stream_stored(request, owner, response_id)


@router.post("/responses/input_tokens", responses=answers(InputTokensReply), openapi_extra=takes(ResponsesBody))
async def count_input_tokens(request: Request) -> Response:
    body, services = await read_for_model(request, ResponsesBody, RouteKind.CHAT)
    tenant = caller_of(request).tenant
    body, turn = await open_turn(body, services.storage, tenant)
    chat = as_chat(body, turn.checked_history)
    prompt = await render(chat, read_tools(chat), read_effort(chat, services), services, tenant)
    return json_response({"object": "response.input_tokens", "input_tokens": len(prompt.ids)})


@router.post("/responses/compact", responses=answers(CompactionReply), openapi_extra=takes(CompactBody))
async def compact(request: Request) -> Response:
    """Replaces a conversation by the messages of the user and a summary that the model writes."""
    body, services = await read_for_model(request, CompactBody, RouteKind.CHAT)
    tenant = caller_of(request).tenant
    body, turn = await open_turn(body, services.storage, tenant)
    plan = await plan_compaction(body, turn, services, tenant)
    return await respond(request, services, body, plan, CompactFormat(plan, turn))
