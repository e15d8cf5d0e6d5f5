"""`/v1/completions`, and `/v1/fim/completions`: the same reply for text continued and for a gap filled."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.server.endpoints.completions.format import Detail, TextChunks, TextTeller, text_completion
from quicksilver.server.endpoints.completions.plan import plan_completion, plan_fim
from quicksilver.server.endpoints.completions.wire import CompletionBody, FimBody, TextChunk, TextCompletion
from quicksilver.server.generation.events import SideBySide, reply_events
from quicksilver.server.generation.plan import Plan
from quicksilver.server.generation.respond import open_job, reply_stream, reply_whole
from quicksilver.server.http.auth import caller_of
from quicksilver.server.http.body import read_body
from quicksilver.server.http.openapi import answers_or_streams, takes
from quicksilver.server.services import Services, services_of

router = APIRouter(prefix="/v1", tags=["completions"])
RESPONSES = answers_or_streams(TextCompletion, TextChunk)


@router.post("/fim/completions", responses=RESPONSES, openapi_extra=takes(FimBody))
async def fim_completions(request: Request) -> Response:
    services = services_of(request)
    body = await read_body(request, FimBody, services.config)
    return await respond(request, body, await plan_fim(body, services, caller_of(request).tenant))


@router.post("/completions", responses=RESPONSES, openapi_extra=takes(CompletionBody))
async def completions(request: Request) -> Response:
    """A request with a suffix is fill-in-the-middle: some editors post it here."""
    services = services_of(request)
    body = await read_body(request, CompletionBody, services.config)
    make = plan_completion if body.suffix is None else plan_fim
    return await respond(request, body, await make(body, services, caller_of(request).tenant))


async def respond(request: Request, body: FimBody | CompletionBody, plan: Plan) -> Response:
    services, job = services_of(request), open_job(request, plan)
    fingerprint = services.engine.info.fingerprint
    detail = detail_of(body, services)
    prefixes = echoes(body, plan, services)
    if not body.stream:
        return await reply_whole(
            request, job, lambda answers: text_completion(plan, answers, fingerprint, detail, prefixes)
        )
    has_usage = bool(body.stream_options and body.stream_options.include_usage)
    chunks = TextChunks(plan, fingerprint, has_usage=has_usage)
    tellers = [TextTeller(i, chunks, detail, prefix) for i, prefix in enumerate(prefixes)]
    events = reply_events(job, SideBySide(tellers), chunks.usage if has_usage else None)
    return await reply_stream(request, job, events)


def detail_of(body: FimBody | CompletionBody, services: Services) -> Detail:
    if isinstance(body, FimBody):
        return Detail()
    return Detail(services.tokenizer if body.logprobs is not None else None, bool(body.return_token_ids))


def echoes(body: FimBody | CompletionBody, plan: Plan, services: Services) -> Sequence[str]:
    """What stands before each answer's text: its prompt under `echo`, else nothing."""
    if isinstance(body, CompletionBody) and body.echo:
        return [services.tokenizer.decode(ask.request.prompt_ids) for ask in plan.asks]
    return [""] * len(plan.asks)
