"""`/v1/tokenize` and `/v1/detokenize`."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.chat.prompt import ToolPlan, read_messages
from quicksilver.server.endpoints.tokens.wire import DetokenizeBody, DetokenizeReply, TokenizeBody, TokenizeReply
from quicksilver.server.http.body import read_body
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.http.openapi import answers, takes
from quicksilver.server.services import Services, services_of

router = APIRouter(prefix="/v1", tags=["tokens"])


@router.post("/tokenize", responses=answers(TokenizeReply), openapi_extra=takes(TokenizeBody))
async def tokenize(request: Request) -> Response:
    services = services_of(request)
    body = await read_body(request, TokenizeBody, services.config)
    services.directory.check(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("Give either prompt or messages.", param="prompt")
    ids = await asyncio.to_thread(encode, body, services)
    reply = {"tokens": ids, "count": len(ids), "max_model_len": services.engine.info.context_len}
    return json_response(reply)


def encode(body: TokenizeBody, services: Services) -> list[int]:
    if body.messages is None:
        return services.tokenizer.encode(body.prompt or "")
    tools = ToolPlan(tuple(tool.function for tool in body.tools or ())).tools
    prompt = services.template.render(
        read_messages(body.messages),
        tools,
        effort=body.reasoning_effort,
        add_generation_prompt=body.add_generation_prompt is not False,
    )
    return list(prompt.ids)


@router.post("/detokenize", responses=answers(DetokenizeReply), openapi_extra=takes(DetokenizeBody))
async def detokenize(request: Request) -> Response:
    """The text of ids; special tokens have none, and bytes that are not UTF-8 become U+FFFD."""
    services = services_of(request)
    body = await read_body(request, DetokenizeBody, services.config)
    services.directory.check(body.model)
    beyond = next((i for i, token_id in enumerate(body.tokens) if token_id >= services.tokenizer.vocab_size), None)
    if beyond is not None:
        raise InvalidRequest(f"tokens.{beyond}: no token has this id", param=f"tokens.{beyond}")
    return json_response({"prompt": await asyncio.to_thread(services.tokenizer.decode, body.tokens)})
