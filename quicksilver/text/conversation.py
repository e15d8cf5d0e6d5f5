"""Messages, tools and tool calls, independent of the wire format. All records are immutable."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from quicksilver.errors import InvalidRequest

Role = Literal["system", "user", "assistant", "tool"]

MAX_ARGUMENTS_DEPTH = 64


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the assistant made. `arguments` is JSON text, as the model wrote it."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function on offer. `parameters` is its JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. An assistant turn may have text, calls, or both; a tool turn answers the call `tool_call_id`."""

    role: Role
    content: str = ""
    # What the assistant thought in that turn; templates may leave it out.
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """A conversation to write down; a prompt for generating ends in an open assistant turn."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    effort: str | None = None
    add_generation_prompt: bool = True


def parse_arguments(arguments: str) -> object:
    """The JSON value of a call's arguments; text that is not JSON, or that escapes half a character, stays a string.
    Blank text is no arguments. Deep nesting is refused."""
    if not arguments.strip():
        return {}
    try:
        value = json.loads(arguments)
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        return arguments
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_ARGUMENTS_DEPTH:
            raise _too_deep()
        level = [child for node in level for child in _children(node)]
    return value if _is_encodable(value) else arguments


def _is_encodable(value: object) -> bool:
    """Whether no string in it has a lone surrogate, which no encoding can carry."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _children(node: object) -> Iterable[object]:
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, list) else ()


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"tool call arguments are nested deeper than {MAX_ARGUMENTS_DEPTH}", param="messages")
