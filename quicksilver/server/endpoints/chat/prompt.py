"""Messages and tools of a chat body -> text.Message and text.Tool.

The role `developer` becomes system, `function` becomes tool, and parts are joined to one text. Nothing is fetched. A
message that cannot be rendered is refused with its position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.chat.wire import AllowedToolChoice, ChatBody, ChatMessage, ToolChoice
from quicksilver.server.http.fields import FunctionSpec, NamedTool, join_text
from quicksilver.text.chat import Message, Role, Tool, ToolCall

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """The tools that an answer may call, and whether it must call one."""

    specs: tuple[FunctionSpec, ...] = ()
    is_required: bool = False
    allows_parallel: bool = True
    # The caller named the one tool to call.
    is_named: bool = False

    @property
    def names(self) -> frozenset[str]:
        return frozenset(spec.name for spec in self.specs)

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(Tool(spec.name, spec.description or "", spec.parameters or {}) for spec in self.specs)


def read_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    return [_read_message(message, f"messages.{i}") for i, message in enumerate(messages)]


def _read_message(message: ChatMessage, place: str) -> Message:
    calls = tuple(
        ToolCall(call.function.name, call.function.arguments, call.id or "") for call in message.tool_calls or ()
    )
    if message.content is None and message.role not in ("assistant", "function"):
        raise InvalidRequest(f"{place}.content: a {message.role} message needs content", param=f"{place}.content")
    if calls and message.role != "assistant":
        raise InvalidRequest(f"{place}.tool_calls: only the assistant calls tools", param=f"{place}.tool_calls")
    return Message(
        role=ROLES[message.role],
        content=join_text(message.content),
        reasoning=message.reasoning_content or "",
        tool_calls=calls,
        tool_call_id=message.tool_call_id or "",
        name=message.name or "",
    )


def read_tools(body: ChatBody) -> ToolOptions:
    specs = tuple(tool.function for tool in body.tools or ())
    return choose_tools(specs, body.tool_choice, allows_parallel=body.parallel_tool_calls is not False)


def choose_tools(specs: tuple[FunctionSpec, ...], choice: ToolChoice | None, *, allows_parallel: bool) -> ToolOptions:
    """`choice` is a word, or an object that names the tools that may be called."""
    _refuse_duplicates(specs)
    if choice == "none":
        return ToolOptions()
    if isinstance(choice, NamedTool):
        return ToolOptions(_only(specs, {choice.function.name}), is_required=True, allows_parallel=False, is_named=True)
    if isinstance(choice, AllowedToolChoice):
        allowed = {tool.function.name for tool in choice.allowed_tools.tools}
        return ToolOptions(_only(specs, allowed), choice.allowed_tools.mode == "required", allows_parallel)
    if choice == "required" and not specs:
        raise InvalidRequest("tool_choice: a call is required but no tools are given", param="tool_choice")
    return ToolOptions(specs, choice == "required", allows_parallel)


def _refuse_duplicates(specs: tuple[FunctionSpec, ...]) -> None:
    names = [spec.name for spec in specs]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise InvalidRequest(f"tools.{i}: the name {name} comes twice", param=f"tools.{i}.function.name")


def _only(specs: tuple[FunctionSpec, ...], names: set[str]) -> tuple[FunctionSpec, ...]:
    chosen = tuple(spec for spec in specs if spec.name in names)
    if missing := names - {spec.name for spec in chosen}:
        raise InvalidRequest(f"tool_choice: no tool is named {min(missing)}", param="tool_choice")
    return chosen
