"""`/infill`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.server.endpoints.completions.plan import plan_fim
from quicksilver.server.endpoints.completions.wire import CompletionBody
from quicksilver.server.endpoints.infill.format import InfillFormat
from quicksilver.server.endpoints.infill.wire import InfillBody, InfillChunk, InfillReply
from quicksilver.server.generation.respond import respond
from quicksilver.server.http.body import read_for_model
from quicksilver.server.http.guard import caller_of
from quicksilver.server.http.openapi import answers_or_streams, takes
from quicksilver.server.services import RouteKind

router = APIRouter(tags=["completions"])


@router.post("/infill", responses=answers_or_streams(InfillReply, InfillChunk), openapi_extra=takes(InfillBody))
async def infill(request: Request) -> Response:
    """llama.cpp's fill-in-the-middle, for its editor plugins."""
    body, services = await read_for_model(request, InfillBody, RouteKind.CODE)
    plan = await plan_fim(to_completion(body), services, caller_of(request).tenant)
    return await respond(request, services, body, plan, InfillFormat(plan, body))


def to_completion(body: InfillBody) -> CompletionBody:
    extra = "".join(f"{file.text.rstrip()}\n\n" for file in body.input_extra or ())
    return CompletionBody(
        model=body.model,
        prompt=extra + body.input_prefix + (body.prompt or ""),
        suffix=body.input_suffix,
        max_tokens=None if body.n_predict == -1 else body.n_predict,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        repetition_penalty=body.repeat_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        seed=body.seed,
        stop=body.stop,
        stream=body.stream,
    )
