"""ResponseTurn: what one response continues, and where it and its items are stored.

A stored response holds its own input only; the items before it are found by following `previous_response_id`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from quicksilver.accounts.records import StoredObject
from quicksilver.errors import InvalidRequest, NotFound
from quicksilver.server.endpoints.responses.wire import CompactBody, InputItem, ResponseReply, ResponsesBody
from quicksilver.server.http.body import parse_object
from quicksilver.server.storage import Storage, read_json, write_json

RESPONSE, CONVERSATION, ITEM = "response", "conversation", "item"
# Responses that are followed back, and items of a conversation that are read.
MAX_CHAIN = 512
MAX_ITEMS = 2048
ID_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "compaction": "cmp",
}
ITEMS: TypeAdapter[list[InputItem]] = TypeAdapter(list[InputItem])

Item = dict[str, Any]


@dataclass
class ResponseTurn:
    storage: Storage
    owner: str = ""
    is_stored: bool = False
    conversation: str | None = None
    # The new items, with ids.
    items: list[Item] = field(default_factory=list)
    # The items before them.
    history: list[Item] = field(default_factory=list)

    @property
    def past(self) -> list[InputItem]:
        return parse_items(self.history, "previous_response_id")

    async def save(self, reply: ResponseReply) -> None:
        if self.is_stored:
            await self.storage.put(self.owner, self.stored(reply))
        if self.conversation is not None:
            await self.append([*self.items, *reply["output"]])

    def stored(self, reply: Mapping[str, Any], *, leased_by: str = "", leased_until: int = 0) -> StoredObject:
        body = write_json({"reply": reply, "input": self.items})
        created_at = int(reply["created_at"])
        return StoredObject(
            RESPONSE,
            reply["id"],
            body,
            created_at=created_at,
            is_open=bool(leased_by),
            leased_by=leased_by,
            leased_until=leased_until,
        )

    async def append(self, items: Sequence[Item]) -> None:
        assert self.conversation is not None
        await self.storage.put(self.owner, *stored_items(self.conversation, items))


def stored_items(conversation: str, items: Sequence[Item]) -> list[StoredObject]:
    return [StoredObject(ITEM, item["id"], write_json(item), conversation) for item in items]


async def open_turn(body: CompactBody, storage: Storage, owner: str) -> ResponseTurn:
    """Reads what the body continues. Raises NotFound for an object of another project."""
    turn = ResponseTurn(storage, owner, items=read_items(body))
    if isinstance(body, ResponsesBody):
        turn.is_stored = body.store is not False and storage.is_on
        turn.conversation = body.conversation_id
    if body.previous_response_id is not None:
        storage.require_on("previous_response_id")
        if turn.conversation is not None:
            raise InvalidRequest("conversation: cannot be combined with previous_response_id", param="conversation")
        turn.history = await read_chain(storage, owner, body.previous_response_id)
    elif turn.conversation is not None:
        storage.require_on("conversation")
        turn.history = await read_conversation(storage, owner, turn.conversation)
    check_references(turn)
    return turn


def check_references(turn: ResponseTurn) -> None:
    """An item may be named by its id where it is part of the conversation; such a reference adds nothing."""
    known = {item["id"] for item in turn.history}
    for i, item in enumerate(turn.items):
        if item["type"] == "item_reference" and item["id"] not in known:
            raise InvalidRequest(f"input.{i}: no item of this conversation has this id", param=f"input.{i}")
    turn.items = [item for item in turn.items if item["type"] != "item_reference"]


def read_items(body: CompactBody) -> list[Item]:
    """The input as it was sent, each item in the form in which it is listed."""
    given = parse_object(body.raw).get("input") if body.raw else None
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [as_listed(item) for item in given or ()]


def as_listed(item: Item) -> Item:
    """The item with an id, a type and a status, and its content as parts."""
    kind = item.get("type") or "message"
    known = item.get("id")
    made = known if isinstance(known, str) and known else f"{ID_PREFIXES.get(kind, 'item')}_{uuid.uuid4().hex}"
    listed = {"status": "completed", **item, "type": kind, "id": made}
    if kind == "message" and isinstance(item.get("content"), str):
        is_output = item.get("role") == "assistant"
        part: Item = {"type": "output_text" if is_output else "input_text", "text": item["content"]}
        listed["content"] = [part | {"annotations": [], "logprobs": []} if is_output else part]
    return listed


def parse_items(items: Sequence[Item], param: str) -> list[InputItem]:
    try:
        return ITEMS.validate_python(items)
    except ValidationError:
        raise InvalidRequest(f"{param}: an item of it cannot be read here", param=param) from None


async def read_chain(storage: Storage, owner: str, response_id: str) -> list[Item]:
    """The items of a response and of all that it continues, oldest first."""
    turns: list[list[Item]] = []
    following: str | None = response_id
    while following is not None and len(turns) < MAX_CHAIN:
        try:
            stored = read_json(await storage.get(owner, RESPONSE, following))
        except NotFound:
            message = "There is no previous response with this id."
            raise NotFound(message, param="previous_response_id", code="previous_response_not_found") from None
        reply = stored["reply"]
        turns.append([*stored["input"], *reply["output"]])
        if (conversation := reply.get("conversation")) is not None:
            return await read_conversation(storage, owner, conversation["id"])
        following = reply.get("previous_response_id")
    return [item for turn in reversed(turns) for item in turn]


async def read_conversation(storage: Storage, owner: str, conversation: str) -> list[Item]:
    await storage.get(owner, CONVERSATION, conversation)
    found = await storage.run(lambda store: store.find(owner, ITEM, conversation, limit=MAX_ITEMS))
    return [read_json(item) for item in found or ()]
