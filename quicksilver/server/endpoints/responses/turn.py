"""ResponseTurn: what one response continues, and where it and its items are stored.

A stored response holds its own input only; the items before it are found by following `previous_response_id`. Each item
of its output is stored apart too, so that a later request can name it by its id.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from quicksilver.accounts.records import StoredObject, StoredReply
from quicksilver.errors import ContextTooLong, InvalidRequest, NotFound
from quicksilver.server.endpoints.responses.wire import CompactBody, InputItem, ResponsesBody
from quicksilver.server.http.body import off_loop, parse_object
from quicksilver.server.storage import Storage, read_json, write_json

if TYPE_CHECKING:
    from quicksilver.accounts.objects import ObjectStore

RESPONSE, CONVERSATION, ITEM, OUTPUT = "response", "conversation", "item", "output"
# Items that a response continues.
MAX_ITEMS = 2048
MAX_ID_CHARS = 256
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
Body = TypeVar("Body", bound=CompactBody)


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
    # `history`, parsed and checked.
    checked_history: list[InputItem] = field(default_factory=list)

    def to_store(self, reply: Mapping[str, Any], leased_by: str = "") -> StoredReply | None:
        """The response, and what it adds to its conversation. `leased_by`: the process of a background response."""
        stored = [self.stored(reply)] if self.is_stored else []
        if self.conversation is not None:
            stored += stored_items(self.conversation, [*self.items, *reply["output"]])
        elif self.is_stored:
            stored += stored_items(reply["id"], reply["output"], OUTPUT)
        return StoredReply(self.owner, tuple(stored), leased_by) if stored else None

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


def stored_items(parent: str, items: Sequence[Item], kind: str = ITEM) -> list[StoredObject]:
    return [StoredObject(kind, item["id"], write_json(item), parent) for item in items]


async def open_turn(body: Body, storage: Storage, owner: str) -> tuple[Body, ResponseTurn]:
    """Reads what the body continues; the body is returned with the items that it names by their ids. Raises NotFound
    for an object of another project."""
    turn = ResponseTurn(storage, owner)
    bounds = HistoryBounds(storage.history_bytes)
    if isinstance(body, ResponsesBody):
        turn.is_stored = body.store is not False and storage.is_on
        turn.conversation = body.conversation_id
        bounds = HistoryBounds(storage.history_bytes, is_cut=body.truncation == "auto")
    turn.items = await off_loop(len(body.raw), lambda: read_items(body, keeps_ids=turn.conversation is None))
    if body.previous_response_id is not None:
        storage.require_on("previous_response_id")
        if turn.conversation is not None:
            raise InvalidRequest("conversation: cannot be combined with previous_response_id", param="conversation")
        turn.history = await read_chain(storage, owner, body.previous_response_id, bounds)
    elif turn.conversation is not None:
        storage.require_on("conversation")
        turn.history = await read_conversation(storage, owner, turn.conversation, bounds)
    num_read = await read_references(turn)
    if turn.conversation is not None:
        await storage.require_room(owner, len(body.raw) + num_read)
    if bounds.is_cut:
        # One message is left for the instructions.
        turn.history = turn.history[-max(1, MAX_ITEMS - len(turn.items) - 1) :]
    turn.checked_history = await off_loop(bounds.num_read, lambda: parse_items(turn.history, "previous_response_id"))
    if not num_read:
        return body, turn
    given = await off_loop(num_read + len(body.raw), lambda: parse_items(turn.items, "input"))
    return body.model_copy(update={"input": given}), turn


@dataclass
class HistoryBounds:
    """The most that is read of what a response continues."""

    max_bytes: int
    # Whether the oldest items are left out where there are more; otherwise they are refused.
    is_cut: bool = False
    num_read: int = 0

    def takes(self, num_items: int, num_bytes: int) -> bool:
        """Whether so much more may be read. Raises ContextTooLong unless the oldest items are left out."""
        if num_items <= MAX_ITEMS and self.num_read + num_bytes <= self.max_bytes:
            return True
        if self.is_cut:
            return False
        message = f"The conversation has more than {MAX_ITEMS} items or {self.max_bytes} bytes"
        raise ContextTooLong(f"{message}: set truncation to auto, or begin a new one.", param="input")


async def read_references(turn: ResponseTurn) -> int:
    """Replaces references by the stored items that they name; one to an item that is part of the turn already adds
    nothing. Returns the bytes that were read."""
    known = {item["id"] for item in turn.history}
    named = {item["id"] for item in turn.items if item["type"] == "item_reference"} - known
    found = await _find_items(turn, named) if named else {}
    num_read = sum(len(each.body) for each in found.values())
    items: list[Item] = []
    for i, item in enumerate(turn.items):
        if item["type"] != "item_reference":
            items.append(item)
        elif item["id"] in found:
            known.add(item["id"])
            stored = read_json(found.pop(item["id"]))
            # In a conversation the copy is an item of its own.
            items.append(as_listed(stored, keeps_id=turn.conversation is None))
        elif item["id"] not in known:
            raise InvalidRequest(f"input.{i}: no stored item has this id", param=f"input.{i}")
    turn.items = items
    return num_read


async def _find_items(turn: ResponseTurn, ids: set[str]) -> dict[str, StoredObject]:
    """Items of conversations and outputs of responses, by id."""
    if not turn.storage.is_on:
        return {}
    most = turn.storage.history_bytes
    found = await turn.storage.run(lambda store: store.named(turn.owner, (ITEM, OUTPUT), ids, most))
    if found is None:
        raise ContextTooLong(f"The items that the input names have more than {most} bytes.", param="input")
    return {each.id: each for each in found}


def read_items(body: CompactBody, *, keeps_ids: bool) -> list[Item]:
    """The input as it was sent, each item in the form in which it is listed. Items that become part of a conversation
    get ids of their own: an id that was sent may be that of an item of another conversation."""
    given = parse_object(body.raw).get("input") if body.raw else None
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [as_listed(item, keeps_id=keeps_ids or item.get("type") == "item_reference") for item in given or ()]


def as_listed(item: Item, *, keeps_id: bool) -> Item:
    """The item with an id, a type and a status, and its content as parts."""
    kind = item.get("type") or "message"
    known = item.get("id")
    is_kept = keeps_id and isinstance(known, str) and 0 < len(known) <= MAX_ID_CHARS
    made = known if is_kept else f"{ID_PREFIXES.get(kind, 'item')}_{uuid.uuid4().hex}"
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


async def read_chain(storage: Storage, owner: str, response_id: str, bounds: HistoryBounds) -> list[Item]:
    """The items of a response and of all that it continues, oldest first."""
    turns: list[list[Item]] = []
    following: str | None = response_id
    while following is not None:
        try:
            found = await storage.get(owner, RESPONSE, following)
        except NotFound:
            message = "There is no previous response with this id."
            raise NotFound(message, param="previous_response_id", code="previous_response_not_found") from None
        stored = read_json(found)
        reply = stored["reply"]
        if (conversation := reply.get("conversation")) is not None:
            # The conversation contains the items of this response, and may have continued after it.
            last_id = reply["output"][-1]["id"] if reply["output"] else None
            turns.append(up_to(last_id, await read_conversation(storage, owner, conversation["id"], bounds)))
            break
        turn = [*stored["input"], *reply["output"]]
        if not bounds.takes(sum(map(len, turns)) + len(turn), len(found.body)):
            break
        bounds.num_read += len(found.body)
        turns.append(turn)
        following = reply.get("previous_response_id")
    return [item for turn in reversed(turns) for item in turn]


def up_to(item_id: str | None, items: list[Item]) -> list[Item]:
    """The items up to the one with this id; all of them if there is none."""
    end = next((i for i, item in enumerate(items, start=1) if item["id"] == item_id), len(items))
    return items[:end]


async def read_conversation(storage: Storage, owner: str, conversation: str, bounds: HistoryBounds) -> list[Item]:
    """The newest items, oldest first."""
    await storage.get(owner, CONVERSATION, conversation)

    def read(store: ObjectStore) -> list[StoredObject]:
        bounds.takes(*store.extent(owner, ITEM, conversation))
        left = max(0, bounds.max_bytes - bounds.num_read)
        found = store.page(owner, ITEM, conversation, limit=MAX_ITEMS, max_bytes=left, is_descending=True)
        return found[0][::-1] if found else []

    stored = await storage.run(read)
    num_bytes = sum(len(each.body) for each in stored)
    bounds.num_read += num_bytes
    return await off_loop(num_bytes, lambda: [read_json(each) for each in stored])
