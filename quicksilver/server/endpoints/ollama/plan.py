"""Ollama bodies -> the bodies of this server's own endpoints, which plan the answer."""

from __future__ import annotations

from typing import Any

import orjson

from quicksilver.server.endpoints.chat.plan import plan_chat
from quicksilver.server.endpoints.chat.wire import ChatBody
from quicksilver.server.endpoints.completions.plan import plan_completion, plan_fim
from quicksilver.server.endpoints.completions.wire import CompletionBody
from quicksilver.server.endpoints.ollama.wire import (
    OllamaBody,
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaMessage,
    OllamaOptions,
)
from quicksilver.server.generation.plan import ReplyPlan
from quicksilver.server.http.fields import MAX_STOPS
from quicksilver.server.services import Services


async def plan_ollama_chat(body: OllamaChatBody, services: Services, tenant: str) -> ReplyPlan:
    fields = chat_fields(body)
    fields["messages"] = [write_message(message) for message in body.messages]
    if body.tools:
        fields["tools"] = [tool.model_dump() for tool in body.tools]
    return await plan_chat(ChatBody.model_validate(fields), services, tenant)


async def plan_generate(body: OllamaGenerateBody, services: Services, tenant: str) -> ReplyPlan:
    """A prompt is a user message unless it is raw, or the text before a gap."""
    if body.suffix is not None or body.raw_:
        logprobs = min(body.top_logprobs or 0, 5) if body.logprobs else None
        fields = {**sampling(body), "model": body.model, "prompt": body.prompt, "suffix": body.suffix}
        completion = CompletionBody.model_validate({**fields, "logprobs": logprobs})
        make_plan = plan_completion if body.suffix is None else plan_fim
        return await make_plan(completion, services, tenant)
    system = [{"role": "system", "content": body.system}] if body.system else []
    messages = [*system, {"role": "user", "content": body.prompt}]
    chat = ChatBody.model_validate({**chat_fields(body), "messages": messages})
    return await plan_chat(chat, services, tenant)


def chat_fields(body: OllamaBody) -> dict[str, Any]:
    fields: dict[str, Any] = {"model": body.model, **sampling(body)}
    if isinstance(fields.get("stop"), list):
        fields["stop"] = fields["stop"][:MAX_STOPS]
    if body.think is not None:
        fields["reasoning_effort"] = body.think if isinstance(body.think, str) else "medium" if body.think else "none"
    if body.logprobs:
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    if body.format == "json":
        fields["response_format"] = {"type": "json_object"}
    elif isinstance(body.format, dict):
        schema = {"name": "answer", "schema": body.format, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields


def sampling(body: OllamaBody) -> dict[str, Any]:
    options = body.options or OllamaOptions()
    fields = options.model_dump(exclude_none=True, exclude={"num_predict", "repeat_penalty"})
    if options.repeat_penalty is not None:
        fields["repetition_penalty"] = options.repeat_penalty
    # -1 and -2 set no limit.
    if options.num_predict is not None and options.num_predict >= 0:
        fields["max_tokens"] = options.num_predict
    return fields


def write_message(message: OllamaMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.thinking:
        fields["reasoning_content"] = message.thinking
    if message.tool_name:
        fields["name"] = message.tool_name
    if message.tool_calls:
        calls = [
            (call.function.name, orjson.dumps(call.function.arguments or {}).decode()) for call in message.tool_calls
        ]
        fields["tool_calls"] = [
            {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(calls)
        ]
    return fields
