"""`/v1/conversations`: create, read, update and delete conversations and their items."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.accounts.records import StoredObject
from quicksilver.errors import InvalidRequest, NotFound
from quicksilver.server.endpoints.conversations.wire import (
    ConversationBody,
    ConversationReply,
    ConversationUpdateBody,
    ItemReply,
    NewItemsBody,
)
from quicksilver.server.endpoints.responses.turn import CONVERSATION, ITEM, MAX_ITEMS, Item, as_listed, stored_items
from quicksilver.server.http.body import off_loop, parse_body, parse_object, read_body, read_bytes
from quicksilver.server.http.guard import caller_of
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.http.list_query import DeletedReply, ListQuery, ObjectList
from quicksilver.server.http.openapi import answers, answers_read, may_take, takes
from quicksilver.server.http.query import asks, read_query
from quicksilver.server.services import services_of
from quicksilver.server.storage import list_reply, read_json, write_json

router = APIRouter(prefix="/v1/conversations", tags=["conversations"])


@router.post("", responses=answers(ConversationReply), openapi_extra=may_take(ConversationBody))
async def create_conversation(request: Request) -> Response:
    services, owner = services_of(request), caller_of(request).tenant
    services.storage.require_on("items")
    raw = await read_bytes(request, services.config) or b"{}"
    body, items = await off_loop(len(raw), lambda: (parse_body(raw, ConversationBody), _new_items(raw)))
    reply = {
        "id": f"conv_{uuid.uuid4().hex}",
        "object": "conversation",
        "created_at": int(time.time()),
        "metadata": dict(body.metadata or {}),
    }
    await services.storage.put(owner, _stored(reply), *stored_items(str(reply["id"]), items))
    return json_response(reply)


@router.get("/{conversation_id}", responses=answers_read(ConversationReply))
async def get_conversation(request: Request, conversation_id: str) -> Response:
    return json_response(await _conversation(request, conversation_id))


@router.post("/{conversation_id}", responses=answers(ConversationReply), openapi_extra=takes(ConversationUpdateBody))
async def update_conversation(request: Request, conversation_id: str) -> Response:
    services = services_of(request)
    reply = await _conversation(request, conversation_id)
    body = await read_body(request, ConversationUpdateBody, services.config)
    reply = {**reply, "metadata": dict(body.metadata or {})}
    await services.storage.put(caller_of(request).tenant, _stored(reply))
    return json_response(reply)


@router.delete("/{conversation_id}", responses=answers_read(DeletedReply))
async def delete_conversation(request: Request, conversation_id: str) -> Response:
    await services_of(request).storage.delete(caller_of(request).tenant, CONVERSATION, conversation_id)
    return json_response({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


@router.post("/{conversation_id}/items", responses=answers(ObjectList), openapi_extra=takes(NewItemsBody))
async def add_items(request: Request, conversation_id: str) -> Response:
    services, owner = services_of(request), caller_of(request).tenant
    await _conversation(request, conversation_id)
    raw = await read_bytes(request, services.config)
    _, items = await off_loop(len(raw), lambda: (parse_body(raw, NewItemsBody), _new_items(raw)))
    if await services.storage.run(lambda store: store.count(owner, ITEM, conversation_id)) + len(items) > MAX_ITEMS:
        raise InvalidRequest(f"items: a conversation has at most {MAX_ITEMS} items", param="items")
    await services.storage.put(owner, *stored_items(conversation_id, items))
    return json_response(list_reply(items, has_more=False))


@router.get("/{conversation_id}/items", responses=answers_read(ObjectList), openapi_extra=asks(ListQuery))
async def list_items(request: Request, conversation_id: str) -> Response:
    services, owner = services_of(request), caller_of(request).tenant
    query = read_query(request, ListQuery)
    await _conversation(request, conversation_id)
    found, has_more = await services.storage.page(owner, ITEM, query, conversation_id)
    return json_response(list_reply([read_json(item) for item in found], has_more))


@router.get("/{conversation_id}/items/{item_id}", responses=answers_read(ItemReply))
async def get_item(request: Request, conversation_id: str, item_id: str) -> Response:
    return json_response(read_json(await _item(request, conversation_id, item_id)))


@router.delete("/{conversation_id}/items/{item_id}", responses=answers_read(ConversationReply))
async def delete_item(request: Request, conversation_id: str, item_id: str) -> Response:
    conversation = await _conversation(request, conversation_id)
    await _item(request, conversation_id, item_id)
    await services_of(request).storage.delete(caller_of(request).tenant, ITEM, item_id)
    return json_response(conversation)


def _new_items(raw: bytes) -> list[Item]:
    """The items with ids of their own: an id that was sent may be that of an item of another conversation."""
    given: Sequence[Item] = parse_object(raw).get("items") or ()
    for i, item in enumerate(given):
        if item.get("type") == "item_reference":
            raise InvalidRequest(f"items.{i}: send the item itself instead of a reference", param=f"items.{i}")
    return [as_listed(item, keeps_id=False) for item in given]


def _stored(reply: dict[str, Any]) -> StoredObject:
    return StoredObject(CONVERSATION, reply["id"], write_json(reply), created_at=reply["created_at"])


async def _conversation(request: Request, conversation_id: str) -> dict[str, Any]:
    storage = services_of(request).storage
    return read_json(await storage.get(caller_of(request).tenant, CONVERSATION, conversation_id))


async def _item(request: Request, conversation_id: str, item_id: str) -> StoredObject:
    found = await services_of(request).storage.get(caller_of(request).tenant, ITEM, item_id)
    if found.parent != conversation_id:
        raise NotFound("There is no item with this id.")
    return found
