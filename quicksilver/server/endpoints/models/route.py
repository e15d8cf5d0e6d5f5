"""Routes for the model lists of each capability and for a single model by name."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.server.endpoints.models.wire import ModelList, ModelReply
from quicksilver.server.http.error_body import ErrorReply
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.services import services_of

router = APIRouter(prefix="/v1", tags=["models"])
LIST: dict[int | str, dict[str, object]] = {200: {"model": ModelList}}


@router.get("/models", responses=LIST)
async def list_models(request: Request) -> Response:
    directory = services_of(request).directory
    return json_response(directory.listing(directory.names))


@router.get("/chat/completions/models", responses=LIST)
async def list_chat_models(request: Request) -> Response:
    directory = services_of(request).directory
    return json_response(directory.listing(directory.chat_names))


@router.get("/fim/completions/models", responses=LIST)
@router.get("/edit/completions/models", responses=LIST)
@router.get("/apply/completions/models", responses=LIST)
async def list_code_models(request: Request) -> Response:
    directory = services_of(request).directory
    return json_response(directory.listing(directory.code_names))


@router.get("/models/{name:path}", responses={200: {"model": ModelReply}, 404: {"model": ErrorReply}})
async def get_model(request: Request, name: str) -> Response:
    return json_response(services_of(request).directory.entry(name))
