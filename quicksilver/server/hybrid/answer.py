"""A chat body -> the body that an upstream receives, and the upstream's events -> the pieces of an answer.

Only fields of the list below are sent. User names, metadata, headers and everything that is specific to this server
stay here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import orjson

from quicksilver.core import DecodeParams, EngineClient, FinishReason, Request, Usage
from quicksilver.errors import OutputInvalid
from quicksilver.server.endpoints.chat.plan import find_constraint, read_messages, read_tools
from quicksilver.server.endpoints.chat.wire import ChatBody, ChatMessage
from quicksilver.server.generation.plan import AnswerRequest, ReplyPlan, plan_reply, with_ignored
from quicksilver.server.hybrid.upstream import UpstreamClient, UpstreamEvent
from quicksilver.server.services import Services
from quicksilver.text.answer import MAX_FAULT_CHARS, AnswerPiece, Finished, ReadOptions, TextDelta
from quicksilver.text.channels import Channel, ChannelDelta
from quicksilver.text.tokenizer import Tokenizer

SENT_FIELDS = (
    *("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "stop"),
    *("tools", "tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort"),
)
# Sampling fields outside OpenAI's API, which many upstreams refuse, with the values that change nothing.
UNSENT_FIELDS = {"top_k": (0, -1), "min_p": (0,), "repetition_penalty": (1,)}
# Values of `reasoning_effort` that only this server has.
EFFORTS = {"instant": "minimal"}
SENT_MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")


def upstream_body(body: ChatBody, model: str, max_tokens: int, draft: str = "") -> dict[str, Any]:
    """`draft` is sent as a prediction."""
    given = body.model_dump(mode="json", by_alias=True, exclude_none=True, include=set(SENT_FIELDS))
    sent: dict[str, Any] = {
        "model": model,
        "messages": [_sent_message(message) for message in body.messages],
        "max_tokens": max_tokens,
        **given,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if (effort := given.get("reasoning_effort")) in EFFORTS:
        sent["reasoning_effort"] = EFFORTS[effort]
    if draft:
        sent["prediction"] = {"type": "content", "content": draft}
    return sent


def _sent_message(message: ChatMessage) -> dict[str, Any]:
    return message.model_dump(mode="json", exclude_none=True, include=set(SENT_MESSAGE_FIELDS))


@dataclass(frozen=True, slots=True)
class UpstreamAnswer(AnswerRequest):
    """One answer of an upstream. Its request holds the limit on tokens; there are no prompt ids."""

    client: UpstreamClient | None = None
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def num_prompt_tokens(self) -> int:
        """An estimate until the upstream reports its own count: four bytes a token."""
        return len(orjson.dumps(self.body["messages"])) // 4 + 1

    @property
    def max_prompt_tokens(self) -> int:
        """What is reserved: two bytes a token, and room for the upstream's template."""
        return len(orjson.dumps(self.body)) // 2 + 64

    async def pieces(self, engine: EngineClient, tokenizer: Tokenizer) -> AsyncGenerator[AnswerPiece, None]:
        assert self.client is not None
        reader = EventReader(self, tokenizer)
        async with aclosing(self.client.stream(self.body)) as events:
            async for event in events:
                for piece in reader.read(event):
                    yield piece


class EventReader:
    """Turns the events of one upstream answer into pieces."""

    def __init__(self, answer: UpstreamAnswer, tokenizer: Tokenizer) -> None:
        self._answer = answer
        self._tokenizer = tokenizer
        self._content = ""
        self._calls: list[tuple[str, str]] = []
        self._num_tokens = 0

    def read(self, event: UpstreamEvent) -> Iterator[AnswerPiece]:
        deltas = tuple(self._deltas(event))
        if deltas:
            # Counted by the tokenizer of this server, until the upstream reports its own count.
            num_tokens = len(self._tokenizer.encode("".join(delta.text for delta in deltas))) or 1
            self._num_tokens += num_tokens
            yield TextDelta(deltas, num_tokens=num_tokens)
        if event.finish is not None:
            yield self._finished(event.finish, event.usage)

    def _deltas(self, event: UpstreamEvent) -> Iterator[ChannelDelta]:
        if event.reasoning:
            yield ChannelDelta(Channel.REASONING, event.reasoning)
        if event.content:
            self._content += event.content
            yield ChannelDelta(Channel.CONTENT, event.content)
        for call in event.calls:
            if call.index == len(self._calls):
                self._calls.append((call.name, ""))
            name, arguments = self._calls[call.index]
            self._calls[call.index] = (name, arguments + call.arguments)
            yield ChannelDelta(Channel.TOOL_CALL, call.arguments, call.index, name)

    def _finished(self, reason: FinishReason, usage: Usage | None) -> Finished:
        find_fault = self._answer.options.find_fault
        fault = find_fault(self._content, self._calls) if find_fault and reason is FinishReason.STOP else None
        if fault is not None:
            raise OutputInvalid(f"The answer does not satisfy the schema: {fault[:MAX_FAULT_CHARS]}")
        counted = usage or Usage(self._answer.num_prompt_tokens, 0, self._num_tokens)
        return Finished(reason, counted, num_calls=len(self._calls))


def plan_upstream(body: ChatBody, client: UpstreamClient, services: Services, draft: str = "") -> ReplyPlan:
    """The plan of an answer by an upstream. `services` are those of the default model, whose limits apply."""
    read_messages(body.messages)
    tools = read_tools(body)
    constraint = find_constraint(body, tools, services.tool_tags, None)
    find_fault = constraint.validator.find_fault if constraint and constraint.validator else None
    requested = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    limit = services.config.card.max_output_len if requested is None else requested
    sent = upstream_body(body, client.settings.model, limit, draft)
    answer = UpstreamAnswer(
        Request("", (), DecodeParams(max_new_tokens=limit)),
        ReadOptions(tool_names=tools.names, find_fault=find_fault),
        client,
        sent,
    )
    ignored = [name for name, neutral in UNSENT_FIELDS.items() if getattr(body, name) not in (None, *neutral)]
    return with_ignored(plan_reply("chatcmpl", body.model, [answer], body.n or 1), ignored)
