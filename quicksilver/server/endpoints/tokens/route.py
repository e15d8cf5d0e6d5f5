"""`/v1/tokenize` and `/v1/detokenize`."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.chat.prompt import ToolOptions, read_messages
from quicksilver.server.endpoints.tokens.wire import DetokenizeBody, DetokenizeReply, TokenizeBody, TokenizeReply
from quicksilver.server.http.auth import caller_of
from quicksilver.server.http.body import read_body
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.http.openapi import answers, takes
from quicksilver.server.services import Services, services_of
from quicksilver.text.conversation import PromptRequest

router = APIRouter(prefix="/v1", tags=["tokens"])


@router.post("/tokenize", responses=answers(TokenizeReply), openapi_extra=takes(TokenizeBody))
async def tokenize(request: Request) -> Response:
    services = services_of(request)
    body = await read_body(request, TokenizeBody, services.config)
    services.directory.check(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("Give either prompt or messages.", param="prompt")
    ids = await encode(body, services, caller_of(request).tenant)
    reply = {"tokens": ids, "count": len(ids), "max_model_len": services.engine.info.context_len}
    return json_response(reply)


async def encode(body: TokenizeBody, services: Services, tenant: str) -> tuple[int, ...]:
    if body.messages is None:
        return (await services.prompts.encode([body.prompt or ""], tenant, "prompt"))[0]
    tools = ToolOptions(tuple(tool.function for tool in body.tools or ())).tools
    adds_prompt = body.add_generation_prompt is not False
    request = PromptRequest(tuple(read_messages(body.messages)), tuple(tools), body.reasoning_effort, adds_prompt)
    return (await services.prompts.render(request, tenant)).ids


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
