"""`/v1/completions` and `/v1/fim/completions`, whose replies have the same form."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.server.endpoints.completions.format import CompletionFormat
from quicksilver.server.endpoints.completions.plan import plan_completion, plan_fim
from quicksilver.server.endpoints.completions.wire import CompletionBody, FimBody, TextChunk, TextCompletion
from quicksilver.server.generation.respond import respond
from quicksilver.server.http.auth import caller_of
from quicksilver.server.http.body import read_body
from quicksilver.server.http.openapi import answers_or_streams, takes
from quicksilver.server.services import services_of

router = APIRouter(prefix="/v1", tags=["completions"])
RESPONSES = answers_or_streams(TextCompletion, TextChunk)


@router.post("/fim/completions", responses=RESPONSES, openapi_extra=takes(FimBody))
async def fim_completions(request: Request) -> Response:
    services = services_of(request)
    body = await read_body(request, FimBody, services.config)
    plan = await plan_fim(body, services, caller_of(request).tenant)
    return await respond(request, body, plan, CompletionFormat(plan, body, services))


@router.post("/completions", responses=RESPONSES, openapi_extra=takes(CompletionBody))
async def completions(request: Request) -> Response:
    """A request with a suffix is fill-in-the-middle: some editors post it here."""
    services = services_of(request)
    body = await read_body(request, CompletionBody, services.config)
    make_plan = plan_completion if body.suffix is None else plan_fim
    plan = await make_plan(body, services, caller_of(request).tenant)
    return await respond(request, body, plan, CompletionFormat(plan, body, services))
