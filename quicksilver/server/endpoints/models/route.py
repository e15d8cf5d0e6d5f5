"""Routes for the model lists of each capability and for a single model by name."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.errors import ModelNotFound
from quicksilver.server.endpoints.models.codex import FullModelList, with_codex_models
from quicksilver.server.endpoints.models.listing import (
    anthropic_model,
    anthropic_models,
    describe,
    entry,
    is_anthropic,
    listing,
)
from quicksilver.server.endpoints.models.wire import ModelList, ModelReply
from quicksilver.server.http.errors import ErrorReply
from quicksilver.server.http.guard import caller_of
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.http.list_query import DeletedReply
from quicksilver.server.http.openapi import answers_read
from quicksilver.server.services import RouteKind, services_of
from quicksilver.tuning.models import delete_model

router = APIRouter(prefix="/v1", tags=["models"])
LIST: dict[int | str, dict[str, object]] = {200: {"model": ModelList}}


@router.get("/models", responses={200: {"model": FullModelList}})
async def list_models(request: Request) -> Response:
    services = services_of(request)
    listed = listing(services, services.model_names.names)
    adapters = await adapter_entries(request)
    listed["data"] += adapters
    if is_anthropic(request):
        return json_response(anthropic_models(listed["data"]))
    names = {*services.model_names.chat, *(entry["id"] for entry in adapters)}
    return json_response(with_codex_models(listed, names))


@router.get("/chat/completions/models", responses=LIST)
async def list_chat_models(request: Request) -> Response:
    services = services_of(request)
    listed = listing(services, services.model_names.chat)
    listed["data"] += await adapter_entries(request)
    return json_response(listed)


@router.get("/fim/completions/models", responses=LIST)
@router.get("/edit/completions/models", responses=LIST)
@router.get("/apply/completions/models", responses=LIST)
async def list_code_models(request: Request) -> Response:
    services = services_of(request)
    listed = listing(services, services.model_names.code, RouteKind.CODE)
    listed["data"] += await adapter_entries(request)
    return json_response(listed)


@router.get("/models/{name:path}", responses={200: {"model": ModelReply}, 404: {"model": ErrorReply}})
async def get_model(request: Request, name: str) -> Response:
    if not name:
        # The list under a path with a slash at its end: an empty name would select the default model.
        return await list_models(request)
    services = services_of(request)
    found = await services.for_tenant(name, RouteKind.CHAT, caller_of(request).tenant)
    is_model = found.model_id in services.by_model
    listed = entry(services, name) if is_model else describe(name, found)
    return json_response(anthropic_model(listed) if is_anthropic(request) else listed)


@router.delete("/models/{name:path}", responses=answers_read(DeletedReply))
async def delete_tuned_model(request: Request, name: str) -> Response:
    """Deletes a tuned model of the project; other models cannot be deleted."""
    storage, owner = services_of(request).storage, caller_of(request).tenant
    if not storage.has_objects or not await storage.run(lambda store: delete_model(store, owner, name)):
        raise ModelNotFound(f"there is no tuned model `{name[:100]}`", param="model")
    return json_response({"id": name, "object": "model", "deleted": True})


async def adapter_entries(request: Request) -> list[ModelReply]:
    """The entries of the adapters that only some callers may use."""
    services = services_of(request)
    served = await services.adapter_source.list(caller_of(request).tenant)
    here = [each for each in served if each.base in services.by_model]
    return [describe(each.name, services.for_adapter(each)) for each in here]
