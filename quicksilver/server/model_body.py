"""read_for_model: a checked body together with the Services of the model that it names.

Every route whose body names a model begins with it, and passes the Services on: the reply is generated and charged by
that model.
"""

from __future__ import annotations

from typing import TypeVar

from fastapi import Request

from quicksilver.server.http.auth import caller_of
from quicksilver.server.http.body import read_body
from quicksilver.server.http.fields import ModelBody
from quicksilver.server.http.json_reply import while_connected
from quicksilver.server.models import RouteKind
from quicksilver.server.services import Services, services_of

NamedBody = TypeVar("NamedBody", bound=ModelBody)


async def read_for_model(request: Request, body_type: type[NamedBody], kind: RouteKind) -> tuple[NamedBody, Services]:
    """The body, with the name of the default model if it names none. Waits while the model is loaded, and raises
    EngineUnavailable if that takes too long."""
    body = await read_body(request, body_type, services_of(request).config)
    return await choose_model(request, body, kind)


async def choose_model(request: Request, body: NamedBody, kind: RouteKind) -> tuple[NamedBody, Services]:
    """As `read_for_model`, for a body that has been read."""
    services = await services_of(request).for_tenant(body.model, kind, caller_of(request).tenant)
    if not services.is_loaded:
        await while_connected(request, services.load())
    if body.model:
        return body, services
    return body.model_copy(update={"model": services.directory.default}), services
