"""Ollama bodies -> the bodies of this server's own endpoints, which plan the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from quicksilver.editing.templates import read_fim
from quicksilver.server.endpoints.chat.plan import plan_chat
from quicksilver.server.endpoints.chat.wire import ChatBody
from quicksilver.server.endpoints.completions.plan import plan_completion, plan_fim
from quicksilver.server.endpoints.completions.wire import CompletionBody
from quicksilver.server.endpoints.ollama.wire import (
    NEUTRAL_OPTIONS,
    OllamaBody,
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaMessage,
    OllamaOptions,
)
from quicksilver.server.generation.plan import ReplyPlan, read_stop
from quicksilver.server.http.body import validate
from quicksilver.server.services import Services

# Options that have another name here, or that are accepted only where they change nothing.
NOT_COPIED = {"num_predict", "repeat_penalty", *NEUTRAL_OPTIONS}


async def plan_ollama_chat(body: OllamaChatBody, services: Services, tenant: str) -> ReplyPlan:
    fields = chat_fields(body)
    fields["messages"] = [write_message(message) for message in body.messages or ()]
    if body.tools:
        fields["tools"] = [tool.model_dump() for tool in body.tools]
    return await _plan(body, fields, services, tenant)


async def _plan(body: OllamaBody, fields: dict[str, Any], services: Services, tenant: str) -> ReplyPlan:
    """A chat body has fewer stop strings than an Ollama body, so they are set in its plan."""
    plan = await plan_chat(validate(ChatBody, fields), services, tenant)
    stop = read_stop(body.options.stop if body.options else None)
    answers = tuple(replace(one, options=replace(one.options, stop=stop)) for one in plan.answers)
    return replace(plan, answers=answers)


def read_gap(body: OllamaGenerateBody) -> OllamaGenerateBody:
    """A raw prompt in the fill-in-the-middle template of a code model becomes prompt and suffix."""
    if not body.raw_ or body.suffix is not None or body.logprobs:
        return body
    fim = read_fim(body.prompt)
    return body if fim is None else body.model_copy(update={"prompt": fim.before, "suffix": fim.suffix})


async def plan_generate(body: OllamaGenerateBody, services: Services, tenant: str) -> ReplyPlan:
    """A prompt is a user message unless it is raw, or the text before a gap."""
    if body.suffix is not None or body.raw_:
        logprobs = min(body.top_logprobs or 0, 5) if body.logprobs else None
        fields = {**sampling(body), "model": body.model, "prompt": body.prompt, "suffix": body.suffix}
        if body.suffix is None and (body.options or OllamaOptions()).is_unlimited:
            # Without a limit a completion would have that of `/v1/completions`, which is short.
            fields["max_tokens"] = services.config.card.max_output_len
        completion = validate(CompletionBody, {**fields, "logprobs": logprobs})
        make_plan = plan_completion if body.suffix is None else plan_fim
        return await make_plan(completion, services, tenant)
    system = [{"role": "system", "content": body.system}] if body.system else []
    messages = [*system, {"role": "user", "content": body.prompt}]
    return await _plan(body, {**chat_fields(body), "messages": messages}, services, tenant)


def chat_fields(body: OllamaBody) -> dict[str, Any]:
    fields: dict[str, Any] = {"model": body.model, **sampling(body)}
    fields.pop("stop", None)
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
    fields = options.model_dump(exclude_none=True, exclude=NOT_COPIED)
    if options.repeat_penalty is not None:
        fields["repetition_penalty"] = options.repeat_penalty
    if options.num_predict is not None and not options.is_unlimited:
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
