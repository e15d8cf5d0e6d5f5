"""`/feedback`: editors report whether a suggestion was accepted."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.server.endpoints.feedback.wire import FeedbackBody, FeedbackReply
from quicksilver.server.http.body import read_body
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.http.openapi import answers, takes
from quicksilver.server.services import services_of

router = APIRouter(tags=["feedback"])


@router.post("/feedback", responses=answers(FeedbackReply), openapi_extra=takes(FeedbackBody))
async def feedback(request: Request) -> Response:
    services = services_of(request)
    body = await read_body(request, FeedbackBody, services.config, services.config.public_body_bytes)
    sender = request.client.host if request.client else ""
    return json_response({"stored": await services.feedback.add(body, sender)})
