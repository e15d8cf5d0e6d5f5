"""A Messages body -> the equivalent chat body, so that both APIs are planned by the same code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import orjson

from quicksilver.core import ThinkBudget
from quicksilver.errors import ContextTooLong, InvalidRequest
from quicksilver.server.endpoints.chat.plan import plan_chat, read_effort, read_tools, render
from quicksilver.server.endpoints.chat.tool_names import short_name
from quicksilver.server.endpoints.chat.wire import ChatBody
from quicksilver.server.endpoints.messages.wire import (
    Block,
    CountTokensBody,
    DocumentBlock,
    MessagesBody,
    MessageTool,
    MessageTurn,
    ResultBlock,
    SearchResultBlock,
    SkippedBlock,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from quicksilver.server.generation.plan import ReplyPlan, add_warning, read_stop, with_ignored
from quicksilver.server.http.body import validate
from quicksilver.server.services import Services
from quicksilver.text.chat import lower_budget

# Anthropic's efforts that have another name here.
EFFORTS = {"xhigh": "high", "max": "high"}
# Fields that change no answer and that clients send with every request.
SILENT = frozenset({"cache_control", "metadata", "service_tier", "context_management"})
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
DEFAULT_EFFORT = "medium"


async def plan_message(body: MessagesBody, services: Services, tenant: str) -> ReplyPlan:
    check_signatures(body.messages, services)
    if body.messages[-1].role == "assistant":
        raise InvalidRequest(
            "messages: the last message must be of the user; the beginning of an answer cannot be given",
            param="messages",
        )
    try:
        plan = await plan_chat(as_chat(body), services, tenant)
    except ContextTooLong as error:
        # Agents compact their history when a message begins with these words.
        raise ContextTooLong(f"prompt is too long: {error.message}", param="messages") from None
    (answer,) = plan.answers
    options = replace(answer.options, stop=read_stop(body.stop_sequences))
    request = replace(answer.request, think=_bounded(answer.request.think, body))
    planned = replace(
        plan,
        id=plan.id.replace("chatcmpl-", "msg_").replace("-", ""),
        answers=(replace(answer, request=request, options=options),),
        warning=add_warning(add_warning(plan.warning, skipped_tools(body)), skipped_blocks(body)),
    )
    return with_ignored(planned, [name for name in body.ignored if name not in SILENT])


async def count_tokens(body: CountTokensBody, services: Services, tenant: str) -> int:
    """The length of the prompt that a Messages body with the same fields would have."""
    check_signatures(body.messages, services)
    chat = as_chat(body)
    prompt = await render(chat, read_tools(chat), read_effort(chat, services), services, tenant)
    return len(prompt.ids)


def check_signatures(messages: Sequence[MessageTurn], services: Services) -> None:
    """Thinking that comes back must be thinking that this server wrote."""
    for i, message in enumerate(messages):
        for j, block in enumerate(message.content if isinstance(message.content, list) else ()):
            if isinstance(block, ThinkingBlock) and not services.signer.is_valid(block.thinking, block.signature):
                param = f"messages.{i}.content.{j}"
                raise InvalidRequest(f"{param}: Invalid `signature` in `thinking` block", param=param)


def _bounded(think: ThinkBudget | None, body: MessagesBody) -> ThinkBudget | None:
    budget = body.thinking.budget_tokens if body.thinking else None
    if think is None or budget is None:
        return think
    return lower_budget(think, budget)


def skipped_tools(body: CountTokensBody) -> str | None:
    skipped = [tool.name or tool.type or "" for tool in body.tools or () if not tool.is_custom]
    return f"tools that this server does not run were skipped: {', '.join(skipped)}" if skipped else None


def skipped_blocks(body: CountTokensBody) -> str | None:
    blocks = [block for turn in body.messages if isinstance(turn.content, list) for block in turn.content]
    skipped = dict.fromkeys(block.type for block in blocks if isinstance(block, SkippedBlock))
    return f"blocks of tools that this server does not run were skipped: {', '.join(skipped)}" if skipped else None


def own_names(body: CountTokensBody) -> dict[str, str]:
    """The name of each tool of the caller in the chat body -> the name that was sent."""
    return {short_name(tool.name): tool.name for tool in body.tools or () if tool.is_custom and tool.name}


def as_chat(body: CountTokensBody) -> ChatBody:
    form = (body.output_config.format if body.output_config else None) or body.output_format
    schema = {"name": "output", "schema": form.schema_, "strict": True} if form else None
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": [*_system(body.system), *_turns(body.messages)],
        "reasoning_effort": _effort(body),
        "response_format": {"type": "json_schema", "json_schema": schema} if schema else None,
        "tools": [_tool(tool) for tool in body.tools or () if tool.is_custom] or None,
        **_choice(body),
    }
    if isinstance(body, MessagesBody):
        fields |= {
            "max_tokens": body.max_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
            "seed": body.seed,
            "stream": body.stream,
            "decoder": body.decoder.model_dump() if body.decoder else None,
        }
    return validate(ChatBody, fields)


def _effort(body: CountTokensBody) -> str:
    """Thinking is off unless the request turns it on; `budget_tokens` bounds it within the highest effort."""
    thinking = body.thinking
    if thinking is None or thinking.type in ("disabled", "between_tools"):
        return "none"
    if thinking.type == "enabled" and thinking.budget_tokens is not None:
        return "high"
    effort = body.output_config.effort if body.output_config else None
    return EFFORTS.get(effort, effort) if effort else DEFAULT_EFFORT


def _system(system: str | Sequence[TextBlock] | None) -> list[dict[str, Any]]:
    text = system if isinstance(system, str) else "\n\n".join(block.text for block in system or ())
    return [{"role": "system", "content": text}] if text else []


def _turns(messages: Sequence[MessageTurn]) -> Iterator[dict[str, Any]]:
    for message in messages:
        if isinstance(message.content, str):
            yield {"role": message.role, "content": message.content}
        elif message.role == "assistant":
            yield _assistant_turn(message.content)
        else:
            yield from _caller_turns(message.role, message.content)


def _assistant_turn(blocks: Sequence[Block]) -> dict[str, Any]:
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": short_name(block.name), "arguments": orjson.dumps(block.input).decode()},
        }
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    thinking = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    return {
        "role": "assistant",
        "content": "".join(_texts(blocks)) or (None if calls else ""),
        "reasoning_content": thinking or None,
        "tool_calls": calls or None,
    }


def _caller_turns(role: str, blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    """Results of tools come before the text of the same message."""
    results = [block for block in blocks if isinstance(block, ToolResultBlock)]
    for result in results:
        yield {"role": "tool", "tool_call_id": result.tool_use_id, "content": _result(result)}
    text = "\n\n".join(_texts(blocks))
    if text or not results:
        yield {"role": role, "content": text}


def _result(block: ToolResultBlock) -> str:
    content = block.content
    text = content if isinstance(content, str) else "\n".join(_texts(content or ()))
    return f"Error: {text}" if block.is_error else text


def _texts(blocks: Sequence[Block] | Sequence[ResultBlock]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, TextBlock):
            yield block.text
        elif isinstance(block, DocumentBlock):
            yield "\n".join(part for part in (block.title, block.context, block.source.text) if part)
        elif isinstance(block, SearchResultBlock):
            yield "\n".join((block.title, block.source, *(text.text for text in block.content)))
        elif isinstance(block, ToolReferenceBlock):
            yield block.tool_name


def _tool(tool: MessageTool) -> dict[str, Any]:
    function = {"name": short_name(tool.name or ""), "description": tool.description, "strict": tool.strict}
    return {"type": "function", "function": {**function, "parameters": tool.input_schema}}


def _choice(body: CountTokensBody) -> dict[str, Any]:
    choice = body.tool_choice
    if choice is None or not any(tool.is_custom for tool in body.tools or ()):
        return {}
    parallel = None if choice.disable_parallel_tool_use is None else not choice.disable_parallel_tool_use
    if choice.type != "tool":
        return {"tool_choice": CHOICES[choice.type], "parallel_tool_calls": parallel}
    if choice.name is None:
        raise InvalidRequest("tool_choice.name: the type `tool` needs the name of a tool", param="tool_choice.name")
    named = {"type": "function", "function": {"name": short_name(choice.name)}}
    return {"tool_choice": named, "parallel_tool_calls": parallel}
