"""`/api/chat`, `/api/generate`, `/api/tags`, `/api/ps`, `/api/show` and `/api/version`."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.server.endpoints.ollama.format import OllamaFormat, timestamp
from quicksilver.server.endpoints.ollama.plan import plan_generate, plan_ollama_chat, read_gap
from quicksilver.server.endpoints.ollama.wire import (
    OllamaChatBody,
    OllamaDetails,
    OllamaError,
    OllamaGenerateBody,
    OllamaModel,
    OllamaModelList,
    OllamaReply,
    OllamaRunning,
    OllamaRunningList,
    OllamaShown,
    OllamaVersion,
    ShowBody,
)
from quicksilver.server.generation.respond import respond
from quicksilver.server.http.body import choose_model, read_body, read_for_model
from quicksilver.server.http.guard import caller_of
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.http.openapi import answers, answers_or_streams, answers_read, takes
from quicksilver.server.services import RouteKind, Services, services_of

router = APIRouter(prefix="/api", tags=["ollama"])
listing_router = APIRouter(prefix="/api", tags=["ollama"])

# The version of Ollama's API that these routes follow.
OLLAMA_VERSION = "0.13.0"
# `keep_alive` has no effect: all callers share the models. So no model has a time at which it is unloaded.
NEVER = "9999-12-31T23:59:59Z"
REPLIES = answers_or_streams(OllamaReply, OllamaReply, OllamaError, "application/x-ndjson")


@router.post("/chat", responses=REPLIES, openapi_extra=takes(OllamaChatBody))
async def chat(request: Request) -> Response:
    """Without messages the model is only loaded."""
    body, services = await read_for_model(request, OllamaChatBody, RouteKind.CHAT)
    if not body.messages:
        return json_response(loaded(body.model, is_chat=True))
    plan = await plan_ollama_chat(body, services, caller_of(request).tenant)
    tokenizer = services.tokenizer if body.logprobs else None
    return await respond(request, services, body, plan, OllamaFormat(plan, tokenizer, is_chat=True))


@router.post("/generate", responses=REPLIES, openapi_extra=takes(OllamaGenerateBody))
async def generate(request: Request) -> Response:
    """With a suffix this is fill-in-the-middle. Without a prompt the model is only loaded."""
    body = read_gap(await read_body(request, OllamaGenerateBody, services_of(request).config))
    kind = RouteKind.CHAT if body.suffix is None else RouteKind.CODE
    body, services = await choose_model(request, body, kind)
    if not body.prompt and body.suffix is None:
        return json_response(loaded(body.model, is_chat=False))
    plan = await plan_generate(body, services, caller_of(request).tenant)
    tokenizer = services.tokenizer if body.logprobs else None
    return await respond(request, services, body, plan, OllamaFormat(plan, tokenizer, is_chat=False))


def loaded(model: str, *, is_chat: bool) -> OllamaReply:
    reply: OllamaReply = {"model": model, "created_at": timestamp(), "done": True, "done_reason": "load"}
    return {**reply, "message": {"role": "assistant", "content": ""}} if is_chat else {**reply, "response": ""}


@listing_router.get("/tags", responses=answers_read(OllamaModelList))
async def tags(request: Request) -> Response:
    services = services_of(request)
    models = [list_model(name, each) for name, each in services.by_model.items()]
    aliases = [name for name in services.model_names.names if name not in services.by_model]
    models += [list_model(name, services.for_model(name, RouteKind.CHAT)) for name in aliases]
    return json_response({"models": models})


@listing_router.get("/ps", responses=answers_read(OllamaRunningList))
async def running(request: Request) -> Response:
    """The models that are loaded, each under its own name."""
    loaded_models = {name: each for name, each in services_of(request).by_model.items() if each.is_loaded}
    return json_response({"models": [running_model(name, each) for name, each in loaded_models.items()]})


@listing_router.post("/show", responses=answers(OllamaShown, OllamaError), openapi_extra=takes(ShowBody))
async def show(request: Request) -> Response:
    body = await read_body(request, ShowBody, services_of(request).config)
    named = body.model_copy(update={"model": body.name or body.model})
    _, services = await choose_model(request, named, RouteKind.CHAT)
    info, family = services.engine.info, services.engine.info.family
    shown: OllamaShown = {
        "modelfile": "",
        "parameters": "",
        "template": services.template.source or "",
        "modified_at": timestamp(services.config.card.created or time.time()),
        "details": details(services),
        "model_info": {"general.architecture": family, f"{family}.context_length": info.context_len},
        "capabilities": ["completion", "tools", "insert", *(["thinking"] if services.template.can_think else [])],
    }
    return json_response(shown)


@listing_router.get("/version", responses=answers_read(OllamaVersion))
async def version() -> Response:
    return json_response({"version": OLLAMA_VERSION})


def list_model(name: str, services: Services) -> OllamaModel:
    """A model that was never loaded has no size and no digest yet."""
    info = services.known_info
    return {
        "name": name,
        "model": name,
        "modified_at": timestamp(services.config.card.created or time.time()),
        "size": info.weight_bytes if info else 0,
        "digest": info.fingerprint if info else "",
        "details": details(services),
    }


def running_model(name: str, services: Services) -> OllamaRunning:
    info = services.engine.info
    return {
        **list_model(name, services),
        "expires_at": NEVER,
        "size_vram": 0 if info.device.startswith("cpu") else info.weight_bytes,
        "context_length": info.context_len,
    }


def details(services: Services) -> OllamaDetails:
    info = services.known_info
    return {
        "parent_model": "",
        "format": "quicksilver",
        "family": info.family if info else "",
        "families": [info.family] if info else [],
        "parameter_size": "",
        "quantization_level": info.dtype if info else "",
    }
