"""Stored responses: retrieve, delete, cancel, and the list of input items."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import ConfigDict, Field
from starlette.responses import Response

from quicksilver.server.accounts.usage_wire import Query
from quicksilver.server.endpoints.responses.background import cancel_response, current_reply
from quicksilver.server.endpoints.responses.replay import stream_stored
from quicksilver.server.endpoints.responses.turn import RESPONSE, HistoryBounds, read_chain
from quicksilver.server.endpoints.responses.wire import ResponseReply
from quicksilver.server.http.guard import caller_of
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.http.list_query import DeletedReply, ListQuery, ObjectList
from quicksilver.server.http.openapi import answers_read
from quicksilver.server.http.query import asks, read_query
from quicksilver.server.services import services_of
from quicksilver.server.storage import page_of, read_json

router = APIRouter(prefix="/v1/responses", tags=["responses"])


class RetrieveQuery(Query):
    model_config = ConfigDict(extra="ignore", frozen=True)

    stream: bool = False
    # Events up to this number are left out of a stream.
    starting_after: Annotated[int, Field(ge=0, le=2**31)] | None = None


@router.get("/{response_id}", responses=answers_read(ResponseReply), openapi_extra=asks(RetrieveQuery))
async def retrieve_response(request: Request, response_id: str) -> Response:
    services, owner = services_of(request), caller_of(request).tenant
    query = read_query(request, RetrieveQuery)
    stored = await services.storage.get(owner, RESPONSE, response_id)
    if query.stream:
        after = -1 if query.starting_after is None else query.starting_after
        return stream_stored(request, owner, response_id, after)
    return json_response(await current_reply(stored, services, owner))


@router.delete("/{response_id}", responses=answers_read(DeletedReply))
async def delete_response(request: Request, response_id: str) -> Response:
    await services_of(request).storage.delete(caller_of(request).tenant, RESPONSE, response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


@router.post("/{response_id}/cancel", responses=answers_read(ResponseReply))
async def cancel(request: Request, response_id: str) -> Response:
    services, owner = services_of(request), caller_of(request).tenant
    stored = await services.storage.get(owner, RESPONSE, response_id)
    return json_response(await cancel_response(stored, services, owner))


@router.get("/{response_id}/input_items", responses=answers_read(ObjectList), openapi_extra=asks(ListQuery))
async def list_input_items(request: Request, response_id: str) -> Response:
    """The items of the whole conversation that the response answered, without its own output."""
    services, owner = services_of(request), caller_of(request).tenant
    query = read_query(request, ListQuery)
    stored = read_json(await services.storage.get(owner, RESPONSE, response_id))
    previous = stored["reply"].get("previous_response_id")
    bounds = HistoryBounds(services.storage.history_bytes)
    items = [*(await read_chain(services.storage, owner, previous, bounds) if previous else ()), *stored["input"]]
    return json_response(page_of(items, query))
