"""`/openapi.json`: bodies are read by hand, so their schemas are put into FastAPI's document here.

The document is what the fuzzers run on: a field, a bound or a status that is served is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from quicksilver import __version__
from quicksilver.server.http.errors import ErrorReply
from quicksilver.server.http.fields import Wire

REF = "#/components/schemas/{model}"
BODY_REFUSALS = (400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 503)
PLAIN_REFUSALS = (400, 401, 403, 404, 500, 503)

Responses = dict[int | str, dict[str, Any]]


def takes(model: type[Wire]) -> dict[str, Any]:
    """The `openapi_extra` of a route that reads this body."""
    schema = {"$ref": REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def may_take(model: type[Wire]) -> dict[str, Any]:
    """The same, of a route that also does without one."""
    extra = takes(model)
    extra["requestBody"]["required"] = False
    return extra


def refusals(statuses: tuple[int, ...] = BODY_REFUSALS, reply: Any = ErrorReply) -> Responses:
    return {status: {"model": reply} for status in statuses}


def answers(reply: Any, refusal: Any = ErrorReply) -> Responses:
    """A route that answers with JSON."""
    return {200: {"model": reply}, **refusals(reply=refusal)}


def answers_read(reply: Any) -> Responses:
    """A route that reads no body and answers with JSON."""
    return {200: {"model": reply}, **refusals(PLAIN_REFUSALS)}


def answers_or_streams(
    reply: Any, chunk: Any, refusal: Any = ErrorReply, media_type: str = "text/event-stream"
) -> Responses:
    """A route that answers with JSON, or with events or lines that have the chunk's schema."""
    events = {"x-event-schema": TypeAdapter(chunk).json_schema(ref_template=REF)}
    return {200: {"model": reply, "content": {media_type: events}}, **refusals(reply=refusal)}


def describe(app: FastAPI, bodies: Sequence[type[Wire]]) -> dict[str, Any]:
    """The document, made once; `bodies` are all the models that `takes` was called with."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=__version__, routes=app.routes)
        _, definitions = models_json_schema([(body, "validation") for body in bodies], ref_template=REF)
        document.setdefault("components", {}).setdefault("schemas", {}).update(definitions.get("$defs", {}))
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = document
    return app.openapi_schema
