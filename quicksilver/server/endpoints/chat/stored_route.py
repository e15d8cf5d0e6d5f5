"""Stored chat completions: list, retrieve, update, delete, and their messages."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from quicksilver.accounts.records import StoredObject
from quicksilver.server.endpoints.chat.stored import CHAT, ChatUpdateBody
from quicksilver.server.endpoints.chat.wire import ChatCompletion
from quicksilver.server.http.body import read_body
from quicksilver.server.http.guard import caller_of
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.http.list_query import AscendingQuery, DeletedReply, ObjectList, wanted_metadata
from quicksilver.server.http.openapi import answers, answers_read, takes
from quicksilver.server.http.query import asks, read_query
from quicksilver.server.services import services_of
from quicksilver.server.storage import list_reply, page_of, read_json, write_json

router = APIRouter(prefix="/v1/chat/completions", tags=["chat"])


class ChatListQuery(AscendingQuery):
    model: Annotated[str, Field(max_length=256)] = ""


@router.get("", responses=answers_read(ObjectList), openapi_extra=asks(ChatListQuery))
async def list_chats(request: Request) -> Response:
    """The stored completions, of one model and with given metadata where the query names them."""
    services, owner = services_of(request), caller_of(request).tenant
    query = read_query(request, ChatListQuery)
    wanted = wanted_metadata(request)
    if not query.model and not wanted:
        found, has_more = await services.storage.page(owner, CHAT, query)
        return json_response(list_reply([read_json(chat)["reply"] for chat in found], has_more))

    def read(stored: StoredObject) -> dict[str, Any] | None:
        reply: dict[str, Any] = read_json(stored)["reply"]
        return reply if _matches(reply, query.model, wanted) else None

    return json_response(list_reply(*await services.storage.matching(owner, CHAT, query, read)))


def _matches(reply: dict[str, Any], model: str, metadata: dict[str, str]) -> bool:
    has_model = not model or reply["model"] == model
    return has_model and bool(metadata.items() <= reply["metadata"].items())


@router.get("/{completion_id}", responses=answers_read(ChatCompletion))
async def get_chat(request: Request, completion_id: str) -> Response:
    return json_response((await _chat(request, completion_id))["reply"])


@router.post("/{completion_id}", responses=answers(ChatCompletion), openapi_extra=takes(ChatUpdateBody))
async def update_chat(request: Request, completion_id: str) -> Response:
    services, owner = services_of(request), caller_of(request).tenant
    stored = await _chat(request, completion_id)
    body = await read_body(request, ChatUpdateBody, services.config)
    reply = {**stored["reply"], "metadata": dict(body.metadata or {})}
    changed = StoredObject(CHAT, completion_id, write_json({**stored, "reply": reply}), created_at=reply["created"])
    await services.storage.put(owner, changed)
    return json_response(reply)


@router.delete("/{completion_id}", responses=answers_read(DeletedReply))
async def delete_chat(request: Request, completion_id: str) -> Response:
    await services_of(request).storage.delete(caller_of(request).tenant, CHAT, completion_id)
    return json_response({"id": completion_id, "object": "chat.completion.deleted", "deleted": True})


@router.get("/{completion_id}/messages", responses=answers_read(ObjectList), openapi_extra=asks(AscendingQuery))
async def list_messages(request: Request, completion_id: str) -> Response:
    query = read_query(request, AscendingQuery)
    messages: list[dict[str, Any]] = (await _chat(request, completion_id))["messages"]
    return json_response(page_of(messages, query))


async def _chat(request: Request, completion_id: str) -> dict[str, Any]:
    storage = services_of(request).storage
    return read_json(await storage.get(caller_of(request).tenant, CHAT, completion_id))
