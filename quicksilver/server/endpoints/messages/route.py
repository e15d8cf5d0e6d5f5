"""`/v1/messages`: Anthropic's API. The body is planned as a chat body; the reply has a format of its own."""

from __future__ import annotations

import re

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.messages.format import MessagesFormat
from quicksilver.server.endpoints.messages.plan import count_tokens, plan_message
from quicksilver.server.endpoints.messages.wire import (
    CountTokensBody,
    CountTokensReply,
    MessageEvent,
    MessageObject,
    MessagesBody,
)
from quicksilver.server.generation.respond import respond
from quicksilver.server.http.body import read_for_model
from quicksilver.server.http.errors import AnthropicErrorReply
from quicksilver.server.http.guard import caller_of
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.http.openapi import answers, answers_or_streams, takes
from quicksilver.server.services import RouteKind

router = APIRouter(prefix="/v1", tags=["messages"])
counting_router = APIRouter(prefix="/v1", tags=["messages"])

VERSION = re.compile(r"\d{4}-\d{2}-\d{2}")


@router.post(
    "/messages",
    responses=answers_or_streams(MessageObject, MessageEvent, AnthropicErrorReply),
    openapi_extra=takes(MessagesBody),
)
async def messages(request: Request) -> Response:
    check_version(request)
    body, services = await read_for_model(request, MessagesBody, RouteKind.CHAT)
    plan = await plan_message(body, services, caller_of(request).tenant)
    return await respond(request, services, body, plan, MessagesFormat(plan, body, services))


@counting_router.post(
    "/messages/count_tokens",
    responses=answers(CountTokensReply, AnthropicErrorReply),
    openapi_extra=takes(CountTokensBody),
)
async def count(request: Request) -> Response:
    check_version(request)
    body, services = await read_for_model(request, CountTokensBody, RouteKind.CHAT)
    return json_response({"input_tokens": await count_tokens(body, services, caller_of(request).tenant)})


def check_version(request: Request) -> None:
    """There is one version of this API; a header that is not a version at all is refused. `anthropic-beta` is ignored:
    the fields that a beta adds are known or have no effect."""
    version = request.headers.get("anthropic-version")
    if version is not None and VERSION.fullmatch(version) is None:
        raise InvalidRequest("anthropic-version: a version is a date such as 2023-06-01", param="anthropic-version")
