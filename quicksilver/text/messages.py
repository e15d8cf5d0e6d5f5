"""Messages as plain dicts in OpenAI's form -> Message. A bad message is refused with its place."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from quicksilver.errors import InvalidRequest
from quicksilver.text.conversation import Message, ToolCall

# A message, or the same as a dict in OpenAI's form.
MessageLike = Message | Mapping[str, Any]
# One user message, or a conversation.
Conversation = str | Sequence[MessageLike]

ROLES = ("system", "user", "assistant", "tool")
_MESSAGE_KEYS = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"}


def read_conversation(conversation: Conversation) -> list[Message]:
    if isinstance(conversation, str):
        return [Message("user", conversation)]
    if not conversation:
        raise InvalidRequest("a conversation needs at least one message", param="messages")
    return [read_message(one, i) for i, one in enumerate(conversation)]


def read_message(message: MessageLike, index: int) -> Message:
    if isinstance(message, Message):
        return message
    place = f"messages.{index}"
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{place}: a message is a dict or a Message, not {type(message).__name__}", param=place)
    # A key without a value says nothing: replies of OpenAI's form have several.
    if unknown := sorted(key for key in set(message) - _MESSAGE_KEYS if message[key] is not None):
        raise InvalidRequest(f"{place}: unknown key {unknown[0]!r}", param=place)
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise InvalidRequest(f"{place}: role is one of {', '.join(ROLES)}", param=f"{place}.role")
    if not isinstance(content, str | None) or (content is None and role != "assistant"):
        raise InvalidRequest(f"{place}: content is a string", param=f"{place}.content")
    return Message(
        role=role,
        content=content or "",
        reasoning=message.get("reasoning_content") or "",
        tool_calls=tuple(_read_call(call, place) for call in message.get("tool_calls") or ()),
        tool_call_id=message.get("tool_call_id") or "",
        name=message.get("name") or "",
    )


def _read_call(call: Mapping[str, Any], place: str) -> ToolCall:
    try:
        function = call["function"]
        arguments = function.get("arguments") or ""
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return ToolCall(function["name"], text, call.get("id") or "")
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"{place}: a tool call has a function with name and arguments", param=place) from error
