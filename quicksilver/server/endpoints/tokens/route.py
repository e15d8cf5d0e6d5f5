"""`/v1/tokenize`, `/v1/detokenize` and `/v1/tokenizer_info`, also without `/v1`, where vLLM has them."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.chat.plan import ToolOptions, read_effort, read_messages
from quicksilver.server.endpoints.tokens.wire import (
    DetokenizeBody,
    DetokenizeReply,
    TokenizeBody,
    TokenizeReply,
    TokenizerInfo,
)
from quicksilver.server.http.body import read_for_model
from quicksilver.server.http.guard import caller_of
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.http.openapi import answers, answers_read, takes
from quicksilver.server.services import RouteKind, Services, services_of
from quicksilver.text.conversation import PromptRequest

router = APIRouter(tags=["tokens"])


@router.post("/v1/tokenize", responses=answers(TokenizeReply), openapi_extra=takes(TokenizeBody))
@router.post("/tokenize", responses=answers(TokenizeReply), openapi_extra=takes(TokenizeBody))
async def tokenize(request: Request) -> Response:
    body, services = await read_for_model(request, TokenizeBody, RouteKind.CHAT)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("Give either prompt or messages.", param="prompt")
    ids = await encode(body, services, caller_of(request).tenant)
    reply: dict[str, object] = {
        "tokens": ids,
        "count": len(ids),
        "max_model_len": services.engine.info.context_len,
    }
    if body.return_token_strs:
        reply["token_strs"] = [services.tokenizer.token_text(token_id) for token_id in ids]
    return json_response(reply)


async def encode(body: TokenizeBody, services: Services, tenant: str) -> tuple[int, ...]:
    if body.messages is None:
        special_id = services.tokenizer.special_tokens.get(body.prompt or "")
        if special_id is not None and body.add_special_tokens is not None:
            # Clients of vLLM, which send this field, find the id of a special token in this way.
            return (special_id,)
        return (await services.prompts.encode([body.prompt or ""], tenant, "prompt"))[0]
    tools = ToolOptions(tuple(tool.function for tool in body.tools or ())).tools
    adds_prompt = body.add_generation_prompt is not False
    effort = read_effort(body, services)
    request = PromptRequest(tuple(read_messages(body.messages)), tuple(tools), effort, adds_prompt)
    return (await services.prompts.render(request, tenant)).ids


@router.post("/v1/detokenize", responses=answers(DetokenizeReply), openapi_extra=takes(DetokenizeBody))
@router.post("/detokenize", responses=answers(DetokenizeReply), openapi_extra=takes(DetokenizeBody))
async def detokenize(request: Request) -> Response:
    """The text of ids; special tokens have none, and bytes that are not UTF-8 become U+FFFD."""
    body, services = await read_for_model(request, DetokenizeBody, RouteKind.CHAT)
    beyond = next((i for i, token_id in enumerate(body.tokens) if token_id >= services.tokenizer.vocab_size), None)
    if beyond is not None:
        raise InvalidRequest(f"tokens.{beyond}: no token has this id", param=f"tokens.{beyond}")
    return json_response({"prompt": await asyncio.to_thread(services.tokenizer.decode, body.tokens)})


@router.get("/v1/tokenizer_info", responses=answers_read(TokenizerInfo))
@router.get("/tokenizer_info", responses=answers_read(TokenizerInfo))
async def tokenizer_info(request: Request) -> Response:
    """The names of the tokens that begin and end a text, and the chat template, of the default model."""
    services = services_of(request)
    names = {token_id: name for name, token_id in services.tokenizer.special_tokens.items()}
    info: TokenizerInfo = {
        "tokenizer_class": type(services.tokenizer).__name__,
        "bos_token": None,
        "eos_token": names.get(services.tokenizer.eos_ids[0]),
        "pad_token": None,
        "chat_template": services.template.source,
        "model_max_length": services.engine.info.context_len,
        "vocab_size": services.tokenizer.vocab_size,
    }
    return json_response(info)
