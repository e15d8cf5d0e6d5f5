"""Messages, tools and tool calls, independent of the wire format. All records are immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


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
