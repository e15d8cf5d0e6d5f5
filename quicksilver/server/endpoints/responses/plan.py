"""A Responses body -> the equivalent chat body, so that both dialects are planned by the same code."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from quicksilver.server.endpoints.chat.wire import ChatBody
from quicksilver.server.endpoints.responses.wire import (
    CallItem,
    CallOutputItem,
    InputItem,
    JsonSchemaTextFormat,
    MessageItem,
    NamedToolItem,
    ResponsesBody,
)
from quicksilver.server.http.errors import invalid_body
from quicksilver.server.http.fields import Content


def as_chat(body: ResponsesBody) -> ChatBody:
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": [*_instructions(body), *read_input(body.input)],
        "max_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "logprobs": True if body.top_logprobs is not None else None,
        "top_logprobs": body.top_logprobs,
        "seed": body.seed,
        "stream": body.stream,
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        "response_format": _format(body),
        "tools": [_tool(tool.model_dump(exclude_none=True)) for tool in body.tools] if body.tools else None,
        "tool_choice": _choice(body),
        "parallel_tool_calls": body.parallel_tool_calls,
        "decoder": body.decoder.model_dump() if body.decoder else None,
    }
    try:
        return ChatBody.model_validate(fields)
    except ValidationError as error:
        raise invalid_body(error, fields) from None


def _instructions(body: ResponsesBody) -> list[dict[str, Any]]:
    return [{"role": "system", "content": body.instructions}] if body.instructions else []


def read_input(given: str | list[InputItem]) -> list[dict[str, Any]]:
    """Items as messages; consecutive calls, and calls after an assistant message, belong to one turn."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    for item in given:
        if isinstance(item, CallItem):
            _calling_turn(messages)["tool_calls"].append(_call(item))
        elif isinstance(item, CallOutputItem):
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _content(item.output)})
        elif isinstance(item, MessageItem):
            messages.append({"role": item.role, "content": _content(item.content)})
    return messages


def _calling_turn(messages: list[dict[str, Any]]) -> dict[str, Any]:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", [])
    return messages[-1]


def _call(item: CallItem) -> dict[str, Any]:
    return {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}


def _content(content: Content) -> str | list[dict[str, Any]]:
    return content if isinstance(content, str) else [part.model_dump(exclude_none=True) for part in content]


def _tool(fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": fields.pop("type"), "function": fields}


def _choice(body: ResponsesBody) -> Any:
    choice = body.tool_choice
    if choice is None or isinstance(choice, str):
        return choice
    if isinstance(choice, NamedToolItem):
        return _named(choice)
    return {"type": choice.type, "allowed_tools": {"mode": choice.mode, "tools": [_named(t) for t in choice.tools]}}


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
