"""`/v1/completions` and `/v1/fim/completions`, whose replies have the same form."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.server.endpoints.completions.format import CompletionFormat
from quicksilver.server.endpoints.completions.plan import plan_completion, plan_fim, read_template
from quicksilver.server.endpoints.completions.template_edit import TemplateEditFormat, plan_template_edit
from quicksilver.server.endpoints.completions.wire import CompletionBody, FimBody, TextChunk, TextCompletion
from quicksilver.server.endpoints.feedback.capture import captured_infill
from quicksilver.server.generation.respond import ReplyFormat, respond
from quicksilver.server.http.body import choose_model, read_body, read_for_model
from quicksilver.server.http.guard import caller_of
from quicksilver.server.http.openapi import answers_or_streams, takes
from quicksilver.server.services import RouteKind, services_of

router = APIRouter(prefix="/v1", tags=["completions"])
RESPONSES = answers_or_streams(TextCompletion, TextChunk)


@router.post("/fim/completions", responses=RESPONSES, openapi_extra=takes(FimBody))
async def fim_completions(request: Request) -> Response:
    body, services = await read_for_model(request, FimBody, RouteKind.CODE)
    plan = await plan_fim(body, services, caller_of(request).tenant)
    form = await captured_infill(request, CompletionFormat(plan, body, services), plan, body.prompt, body.suffix or "")
    return await respond(request, services, body, plan, form)


@router.post("/completions", responses=RESPONSES, openapi_extra=takes(CompletionBody))
async def completions(request: Request) -> Response:
    """A request with a suffix, or whose prompt is a fill-in-the-middle template, is answered as an infill; a prompt in
    a next-edit template is answered as an edit. Some editors post both here."""
    body, edit = read_template(await read_body(request, CompletionBody, services_of(request).config))
    is_code = body.suffix is not None or edit is not None
    body, services = await choose_model(request, body, RouteKind.CODE if is_code else RouteKind.CHAT)
    tenant = caller_of(request).tenant
    if edit is not None:
        plan = await plan_template_edit(body, edit, services, tenant)
        return await respond(request, services, body, plan, TemplateEditFormat(plan, body, services, edit))
    make_plan = plan_completion if body.suffix is None else plan_fim
    plan = await make_plan(body, services, tenant)
    form: ReplyFormat = CompletionFormat(plan, body, services)
    if body.suffix is not None and isinstance(body.prompt, str):
        form = await captured_infill(request, form, plan, body.prompt, body.suffix)
    return await respond(request, services, body, plan, form)
