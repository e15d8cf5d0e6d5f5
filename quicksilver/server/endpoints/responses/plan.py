"""A Responses body -> the equivalent chat body, so that both APIs are planned by the same code.

Custom tools are function tools with one text to the chat template; the grammar requires their input as plain text.
Tools of a namespace are function tools whose name begins with that of the namespace.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quicksilver.constrain.source import FormatKind, ResponseFormat
from quicksilver.errors import ContextTooLong, InvalidRequest
from quicksilver.server.endpoints.chat.plan import plan_chat
from quicksilver.server.endpoints.chat.tool_names import short_name
from quicksilver.server.endpoints.chat.wire import ChatBody
from quicksilver.server.endpoints.responses.wire import (
    AllowedToolItems,
    CallItem,
    CallOutputItem,
    CompactBody,
    CompactionItem,
    CustomCallItem,
    CustomOutputItem,
    CustomToolItem,
    FunctionToolItem,
    GrammarInput,
    HostedToolItem,
    InputItem,
    JsonSchemaTextFormat,
    MessageItem,
    NamedToolItem,
    NamespaceItem,
    ResponsesBody,
    ToolItem,
)
from quicksilver.server.generation.plan import ReplyPlan, add_warning, with_ignored
from quicksilver.server.http.body import validate
from quicksilver.server.http.fields import Content
from quicksilver.server.services import Services

SUMMARY_HEAD = "Summary of the conversation so far:\n"
CUSTOM_PARAMETERS = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
# Fields that change no answer and that clients send with every request.
SILENT = frozenset(
    {"client_metadata", "include", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier"}
)
FREE_TEXT = ResponseFormat(FormatKind.LARK)


@dataclass(frozen=True, slots=True)
class ResponseTools:
    """The tools of a body, as the chat plan takes them."""

    chat: list[dict[str, Any]] = field(default_factory=list)
    # The format of the input of each custom tool.
    inputs: dict[str, ResponseFormat] = field(default_factory=dict)
    # Name in the chat body -> namespace and own name.
    namespaces: dict[str, tuple[str, str]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    @property
    def warning(self) -> str | None:
        if not self.skipped:
            return None
        return f"tools that this server does not run were skipped: {', '.join(dict.fromkeys(self.skipped))}"


def read_response_tools(tools: Sequence[ToolItem] | None) -> ResponseTools:
    read = ResponseTools()
    for tool in tools or ():
        if isinstance(tool, FunctionToolItem):
            read.chat.append(_function(tool, tool.name))
        elif isinstance(tool, CustomToolItem):
            read.chat.append(_custom(tool))
            read.inputs[tool.name] = _input_format(tool)
        elif isinstance(tool, NamespaceItem):
            for inner in tool.tools:
                name = namespaced(tool.name, inner.name)
                read.chat.append(_function(inner, name))
                read.namespaces[name] = (tool.name, inner.name)
        else:
            read.skipped.append(tool.type)
    return read


def namespaced(namespace: str | None, name: str) -> str:
    return short_name(f"{namespace}__{name}" if namespace else name)


def _function(tool: FunctionToolItem, name: str) -> dict[str, Any]:
    fields = tool.model_dump(exclude_none=True)
    del fields["type"]
    return {"type": "function", "function": {**fields, "name": name}}


def _custom(tool: CustomToolItem) -> dict[str, Any]:
    how = f'Call it as {{"name": "{tool.name}"}}, a line break, and the input as plain text.'
    description = f"{tool.description}\n{how}" if tool.description else how
    return {
        "type": "function",
        "function": {"name": tool.name, "description": description, "parameters": CUSTOM_PARAMETERS},
    }


def _input_format(tool: CustomToolItem) -> ResponseFormat:
    if not isinstance(tool.format, GrammarInput):
        return FREE_TEXT
    kind = FormatKind.LARK if tool.format.syntax == "lark" else FormatKind.REGEX
    return ResponseFormat(kind, tool.format.definition)


async def plan_response(
    body: ResponsesBody, services: Services, tenant: str, history: Sequence[InputItem] = ()
) -> ReplyPlan:
    """With `truncation: auto` the oldest items are dropped until the prompt fits."""
    tools = read_response_tools(body.tools)
    while True:
        chat = as_chat(body, history, tools)
        try:
            plan = await plan_chat(chat, services, tenant, tools.inputs)
            break
        except ContextTooLong:
            items = [*history, *(body.input if isinstance(body.input, list) else ())]
            if body.truncation != "auto" or len(items) < 2:
                raise
            new = [MessageItem(role="user", content=body.input)] if isinstance(body.input, str) else []
            history, body = (), body.model_copy(update={"input": [*items[(len(items) + 1) // 2 :], *new]})
    plan_id = plan.id.replace("chatcmpl-", "resp_").replace("-", "")
    named = replace(plan, id=plan_id, warning=add_warning(plan.warning, tools.warning))
    return with_ignored(named, [name for name in body.ignored if name not in SILENT])


def as_chat(body: ResponsesBody, history: Sequence[InputItem] = (), tools: ResponseTools | None = None) -> ChatBody:
    tools = tools or read_response_tools(body.tools)
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": read_turns(body, history),
        "max_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "logprobs": True if body.top_logprobs is not None else None,
        "top_logprobs": body.top_logprobs,
        "seed": body.seed,
        "stream": body.stream,
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        "response_format": _format(body),
        "tools": tools.chat or None,
        "tool_choice": _choice(body) if tools.chat else None,
        "parallel_tool_calls": body.parallel_tool_calls,
        "decoder": body.decoder.model_dump() if body.decoder else None,
    }
    return validate(ChatBody, fields)


def read_turns(body: CompactBody, history: Sequence[InputItem]) -> list[dict[str, Any]]:
    given = [MessageItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input or []
    messages = read_input([*history, *given]) or [{"role": "user", "content": ""}]
    return [{"role": "system", "content": body.instructions}, *messages] if body.instructions else messages


def read_input(given: str | Sequence[InputItem]) -> list[dict[str, Any]]:
    """Items as messages; consecutive calls, and calls after an assistant message, belong to one turn."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    for item in given:
        if isinstance(item, CallItem | CustomCallItem):
            _calling_turn(messages)["tool_calls"].append(_call(item))
        elif isinstance(item, CallOutputItem | CustomOutputItem):
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _content(item.output)})
        elif isinstance(item, MessageItem):
            messages.append({"role": item.role, "content": _content(item.content)})
        elif isinstance(item, CompactionItem):
            messages.append({"role": "user", "content": SUMMARY_HEAD + read_summary(item.encrypted_content)})
    return messages


def write_summary(summary: str) -> str:
    return base64.b64encode(summary.encode()).decode()


def read_summary(content: str) -> str:
    try:
        return base64.b64decode(content, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise InvalidRequest("input: this compaction item was not made here", param="input") from None


def _calling_turn(messages: list[dict[str, Any]]) -> dict[str, Any]:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", [])
    return messages[-1]


def _call(item: CallItem | CustomCallItem) -> dict[str, Any]:
    if isinstance(item, CustomCallItem):
        name, arguments = item.name, json.dumps({"input": item.input}, ensure_ascii=False)
    else:
        name, arguments = namespaced(item.namespace, item.name), item.arguments
    return {"id": item.call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _content(content: Content) -> str | list[dict[str, Any]]:
    return content if isinstance(content, str) else [part.model_dump(exclude_none=True) for part in content]


def _choice(body: ResponsesBody) -> Any:
    choice = body.tool_choice
    if choice is None or isinstance(choice, str):
        return choice
    if isinstance(choice, NamedToolItem):
        return _named(choice)
    if isinstance(choice, HostedToolItem):
        return None
    return {"type": choice.type, "allowed_tools": {"mode": choice.mode, "tools": _allowed(choice)}}


def _allowed(choice: AllowedToolItems) -> list[dict[str, Any]]:
    return [_named(tool) for tool in choice.tools if isinstance(tool, NamedToolItem)]


def _named(tool: NamedToolItem) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool.name}}


def _format(body: ResponsesBody) -> dict[str, Any] | None:
    wanted = body.text.format if body.text else None
    if wanted is None:
        return None
    if isinstance(wanted, JsonSchemaTextFormat):
        inner = wanted.model_dump(by_alias=True, exclude_none=True)
        return {"type": inner.pop("type"), "json_schema": inner}
    return {"type": wanted.type}
