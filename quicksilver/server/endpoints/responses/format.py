"""ResponsesFormat: the pieces of an answer -> the items of a response, and the named events that build them.

One item is open at a time: a change of channel closes it and opens the next. The whole reply is the response of the
last event, so both have the same content.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from quicksilver.accounts.records import StoredReply
from quicksilver.core import FinishReason, TokenLogprob
from quicksilver.errors import QuicksilverError
from quicksilver.server.endpoints.chat.format import LogprobFormat, summarise
from quicksilver.server.endpoints.chat.wire import TokenLogprobReply
from quicksilver.server.endpoints.responses.plan import read_response_tools
from quicksilver.server.endpoints.responses.turn import ResponseTurn
from quicksilver.server.endpoints.responses.wire import ReasoningConfig, ResponseReply, ResponsesBody, ResponseUsage
from quicksilver.server.generation.plan import ReplyPlan
from quicksilver.server.generation.respond import Chunk, ReplyFormat
from quicksilver.server.generation.usage import usage_reply
from quicksilver.server.http.body import named_event
from quicksilver.server.http.fields import Wire
from quicksilver.server.services import Services
from quicksilver.text.answer import AnswerPiece, CollectedAnswer, Finished, TextDelta
from quicksilver.text.channels import Channel, ChannelDelta

Event = dict[str, Any]
PREFIXES = {Channel.CONTENT: "msg", Channel.REASONING: "rs", Channel.TOOL_CALL: "fc"}
PARTS = {Channel.CONTENT: "output_text", Channel.REASONING: "reasoning_text"}


@dataclass(slots=True)
class Item:
    """One output item under construction."""

    channel: Channel
    call_index: int = 0
    name: str = ""
    # The group of a function tool.
    namespace: str | None = None
    # A call whose input is plain text.
    is_custom: bool = False
    text: str = ""
    logprobs: list[TokenLogprobReply] = field(default_factory=list)
    # Whether a closed reasoning item has a summary.
    has_summary: bool = False
    id: str = ""
    call_id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")

    def __post_init__(self) -> None:
        self.id = f"{PREFIXES[self.channel]}_{uuid.uuid4().hex}"

    def part(self) -> dict[str, Any]:
        if self.channel is Channel.CONTENT:
            return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self.logprobs)}
        return {"type": "reasoning_text", "text": self.text}

    def reply(self, status: str) -> dict[str, Any]:
        head: dict[str, Any] = {"id": self.id, "status": status}
        parts = [self.part()] if self.text else []
        if self.channel is Channel.CONTENT:
            return {**head, "type": "message", "role": "assistant", "content": parts}
        if self.channel is Channel.REASONING:
            summary = self._summary() if status != "in_progress" else []
            return {**head, "type": "reasoning", "summary": summary, "content": parts}
        call = {"call_id": self.call_id, "name": self.name}
        if self.is_custom:
            return {**head, "type": "custom_tool_call", **call, "input": self.text}
        group = {"namespace": self.namespace} if self.namespace else {}
        return {**head, "type": "function_call", **call, **group, "arguments": self.text}

    def _summary(self) -> list[dict[str, Any]]:
        text = summarise(self.text, may_think=True)["content"] if self.has_summary else None
        return [{"type": "summary_text", "text": text}] if text else []


class ResponsesFormat(ReplyFormat):
    # The event `response.completed` ends a stream.
    last_bytes = b""

    def __init__(
        self, plan: ReplyPlan, body: ResponsesBody, services: Services, turn: ResponseTurn | None = None
    ) -> None:
        self._plan = plan
        self._body = body
        self._tools = read_response_tools(body.tools)
        self._turn = turn or ResponseTurn(services.storage)
        self._logprobs = LogprobFormat(services.tokenizer)
        self._items: list[Item] = []
        self._unsent_logprobs: list[TokenLogprob] = []
        self._is_open = False
        self._finished: Finished | None = None
        self._num_events = 0

    def begin(self) -> Iterator[Event]:
        yield {"type": "response.created", "response": self.response("in_progress")}
        yield {"type": "response.in_progress", "response": self.response("in_progress")}

    def chunks(self, index: int, piece: AnswerPiece) -> Iterator[Event]:
        if isinstance(piece, TextDelta):
            self._unsent_logprobs += piece.logprobs
            for delta in piece.deltas:
                yield from self._delta_events(delta)
        elif isinstance(piece, Finished):
            yield from self._final_events(piece)

    def _final_events(self, finished: Finished) -> Iterator[Event]:
        self._finished = finished
        status = self.final_status
        if not self._items:
            yield from self._open(Item(Channel.CONTENT))
        if self._items[-1].channel is Channel.CONTENT:
            self._items[-1].logprobs += self._take_logprobs()
        yield from self._close(status)
        yield {"type": f"response.{status}", "response": self.response(status)}

    def failure(self, error: QuicksilverError) -> Iterable[Event]:
        reply = self.response("failed")
        code = error.code if error.status < 500 else "server_error"
        reply["error"] = {"code": code, "message": error.message}
        yield {"type": "response.failed", "response": reply}

    def encode(self, chunk: Chunk) -> bytes:
        encoded = named_event(chunk["type"], {**chunk, "sequence_number": self._num_events})
        self._num_events += 1
        return encoded

    def whole(self, answers: Sequence[CollectedAnswer]) -> ResponseReply:
        events = [event for piece in answers[0].as_pieces() for event in self.chunks(0, piece)]
        reply: ResponseReply = events[-1]["response"]
        return reply

    def stored(self) -> StoredReply | None:
        return None if self._finished is None else self._turn.to_store(self.response(self.final_status))

    @property
    def final_status(self) -> str:
        is_cut = self._finished is not None and self._finished.reason is FinishReason.LENGTH
        return "incomplete" if is_cut else "completed"

    def _delta_events(self, delta: ChannelDelta) -> Iterator[Event]:
        item = self._items[-1] if self._is_open else None
        if item is None or (item.channel, item.call_index) != (delta.channel, delta.index):
            yield from self._close("completed")
            yield from self._open(self._new_item(delta))
        if delta.text:
            yield self._grow(self._items[-1], delta.text)

    def _new_item(self, delta: ChannelDelta) -> Item:
        namespace, name = self._tools.namespaces.get(delta.name, (None, delta.name))
        return Item(
            delta.channel,
            delta.index,
            name,
            namespace,
            is_custom=delta.name in self._tools.inputs,
            has_summary=bool(self._body.reasoning and self._body.reasoning.summary),
        )

    def _grow(self, item: Item, text: str) -> Event:
        item.text += text
        event = self._about(item, CUSTOM_DELTA if item.is_custom else DELTAS[item.channel], delta=text)
        if item.channel is Channel.CONTENT:
            event["logprobs"] = self._take_logprobs()
            item.logprobs += event["logprobs"]
        return event

    def _take_logprobs(self) -> list[TokenLogprobReply]:
        taken, self._unsent_logprobs = self._unsent_logprobs, []
        return self._logprobs.reply(taken)["content"]

    def _open(self, item: Item) -> Iterator[Event]:
        self._items.append(item)
        self._is_open = True
        added = {"output_index": len(self._items) - 1, "item": item.reply("in_progress")}
        yield {"type": "response.output_item.added", **added}
        if item.channel in PARTS:
            yield self._about(item, "response.content_part.added", part=item.part())

    def _close(self, status: str) -> Iterator[Event]:
        if not self._is_open:
            return
        self._is_open = False
        item = self._items[-1]
        if item.is_custom:
            yield self._about(item, CUSTOM_DONE, input=item.text)
        elif item.channel is Channel.TOOL_CALL:
            yield self._about(item, DONES[item.channel], arguments=item.text, name=item.name)
        else:
            scores = {"logprobs": item.logprobs} if item.channel is Channel.CONTENT else {}
            yield self._about(item, DONES[item.channel], text=item.text, **scores)
            yield self._about(item, "response.content_part.done", part=item.part())
        yield {
            "type": "response.output_item.done",
            "output_index": len(self._items) - 1,
            "item": item.reply(status),
        }

    def _about(self, item: Item, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "item_id": item.id, "output_index": len(self._items) - 1, **fields}
        if item.channel in PARTS:
            event["content_index"] = 0
        return event

    def _output(self, *, is_cut: bool) -> list[dict[str, Any]]:
        """All items; the limit cut off the last one only."""
        *complete, last = self._items
        return [*(item.reply("completed") for item in complete), last.reply("incomplete" if is_cut else "completed")]

    def response(self, status: str) -> ResponseReply:
        plan, body = self._plan, self._body
        params = plan.answers[0].request.params
        is_cut = status == "incomplete"
        return {
            "id": plan.id,
            "object": "response",
            "created_at": plan.created,
            "status": status,  # type: ignore[typeddict-item]
            "model": plan.model,
            "output": self._output(is_cut=is_cut) if self._finished else [],
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": body.instructions,
            "metadata": dict(body.metadata or {}),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "conversation": {"id": body.conversation_id} if body.conversation_id else None,
            "background": bool(body.background),
            "reasoning": (body.reasoning or ReasoningConfig()).model_dump(),
            "store": self._turn.is_stored,
            "temperature": params.temperature,
            "text": _plain(body.text) or {"format": {"type": "text"}},
            "tool_choice": _plain(body.tool_choice) or "auto",
            "tools": [tool.model_dump(exclude_unset=True) for tool in body.tools or ()],
            "top_p": params.top_p,
            "max_output_tokens": body.max_output_tokens,
            "truncation": body.truncation or "disabled",
            "usage": response_usage(self._finished) if self._finished else None,
            "user": body.user,
            "warning": plan.warning,
        }


CUSTOM_DELTA = "response.custom_tool_call_input.delta"
CUSTOM_DONE = "response.custom_tool_call_input.done"
DELTAS = {
    Channel.CONTENT: "response.output_text.delta",
    Channel.REASONING: "response.reasoning_text.delta",
    Channel.TOOL_CALL: "response.function_call_arguments.delta",
}
DONES = {
    Channel.CONTENT: "response.output_text.done",
    Channel.REASONING: "response.reasoning_text.done",
    Channel.TOOL_CALL: "response.function_call_arguments.done",
}


def _plain(field: Any) -> Any:
    return field.model_dump(by_alias=True, exclude_none=True) if isinstance(field, Wire) else field


def response_usage(finished: Finished) -> ResponseUsage:
    usage = usage_reply([finished])
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": usage["cached_input_tokens"], "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": usage["reasoning_tokens"]},
        "total_tokens": usage["total_tokens"],
    }
