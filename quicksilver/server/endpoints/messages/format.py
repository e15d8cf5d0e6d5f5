"""MessagesFormat: the pieces of an answer -> content blocks, and the named events that build them.

One block is open at a time: a change of channel closes it and opens the next. The whole reply is the message that the
events build, so both have the same content.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from quicksilver.core import FinishReason
from quicksilver.errors import QuicksilverError
from quicksilver.server.endpoints.messages.plan import own_names
from quicksilver.server.endpoints.messages.wire import MessageObject, MessagesBody, MessageUsage, StopReason
from quicksilver.server.generation.plan import ReplyPlan
from quicksilver.server.generation.respond import Chunk, ReplyFormat
from quicksilver.server.generation.usage import usage_reply
from quicksilver.server.http.body import named_event
from quicksilver.server.http.errors import anthropic_envelope
from quicksilver.server.services import Services
from quicksilver.text.answer import AnswerPiece, CollectedAnswer, Finished, TextDelta
from quicksilver.text.channels import Channel, ChannelDelta

Event = dict[str, Any]
PING: Event = {"type": "ping"}


def new_tool_use_id() -> str:
    return f"toolu_{uuid.uuid4().hex[:24]}"


@dataclass(slots=True)
class OpenBlock:
    """One content block under construction."""

    channel: Channel
    call_index: int = 0
    name: str = ""
    text: str = ""
    id: str = field(default_factory=new_tool_use_id)

    def start(self) -> dict[str, Any]:
        if self.channel is Channel.REASONING:
            return {"type": "thinking", "thinking": "", "signature": ""}
        if self.channel is Channel.TOOL_CALL:
            return {"type": "tool_use", "id": self.id, "name": self.name, "input": {}}
        return {"type": "text", "text": ""}

    def delta(self, text: str) -> dict[str, Any]:
        if self.channel is Channel.REASONING:
            return {"type": "thinking_delta", "thinking": text}
        if self.channel is Channel.TOOL_CALL:
            return {"type": "input_json_delta", "partial_json": text}
        return {"type": "text_delta", "text": text}

    def reply(self, signature: str) -> dict[str, Any]:
        if self.channel is Channel.REASONING:
            return {"type": "thinking", "thinking": self.text, "signature": signature}
        if self.channel is Channel.TOOL_CALL:
            return {**self.start(), "input": read_input(self.text)}
        return {"type": "text", "text": self.text}


def read_input(arguments: str) -> dict[str, Any]:
    """The arguments of a call; those of a call that was cut off at the token limit cannot be read and are empty."""
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


class MessagesFormat(ReplyFormat):
    # The event `message_stop` ends a stream.
    last_bytes = b""
    keep_alive = named_event("ping", PING)

    def __init__(self, plan: ReplyPlan, body: MessagesBody, services: Services) -> None:
        self._plan = plan
        self._names = own_names(body)
        self._signer = services.signer
        self._hides_thinking = bool(body.thinking and body.thinking.display == "omitted")
        self._blocks: list[OpenBlock] = []
        self._is_open = False
        self._finished: Finished | None = None

    def begin(self) -> Iterator[Event]:
        yield {"type": "message_start", "message": self.message()}
        yield PING

    def chunks(self, index: int, piece: AnswerPiece) -> Iterator[Event]:
        if isinstance(piece, TextDelta):
            for delta in piece.deltas:
                yield from self._delta_events(delta)
        elif isinstance(piece, Finished):
            yield from self._final_events(piece)

    def failure(self, error: QuicksilverError) -> Iterable[Event]:
        yield anthropic_envelope(error)

    def encode(self, chunk: Chunk) -> bytes:
        return named_event(chunk["type"], chunk)

    def whole(self, answers: Sequence[CollectedAnswer]) -> MessageObject:
        for piece in answers[0].as_pieces():
            for _ in self.chunks(0, piece):
                pass
        return self.message()

    def _delta_events(self, delta: ChannelDelta) -> Iterator[Event]:
        block = self._blocks[-1] if self._is_open else None
        if block is None or (block.channel, block.call_index) != (delta.channel, delta.index):
            yield from self._close()
            block = OpenBlock(delta.channel, delta.index, self._names.get(delta.name, delta.name))
            self._blocks.append(block)
            self._is_open = True
            yield self._about("content_block_start", content_block=block.start())
        if delta.text and not (block.channel is Channel.REASONING and self._hides_thinking):
            block.text += delta.text
            yield self._about("content_block_delta", delta=block.delta(delta.text))

    def _close(self) -> Iterator[Event]:
        if not self._is_open:
            return
        self._is_open = False
        block = self._blocks[-1]
        if block.channel is Channel.REASONING:
            signature = self._signer.sign(block.text)
            yield self._about("content_block_delta", delta={"type": "signature_delta", "signature": signature})
        yield self._about("content_block_stop")

    def _final_events(self, finished: Finished) -> Iterator[Event]:
        yield from self._close()
        self._finished = finished
        message = self.message()
        ends = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
        yield {"type": "message_delta", "delta": ends, "usage": message["usage"]}
        yield {"type": "message_stop"}

    def _about(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "index": len(self._blocks) - 1, **fields}

    def message(self) -> MessageObject:
        plan, finished = self._plan, self._finished
        reply: MessageObject = {
            "id": plan.id,
            "type": "message",
            "role": "assistant",
            "model": plan.model,
            "content": [block.reply(self._signer.sign(block.text)) for block in self._blocks] if finished else [],
            "stop_reason": stop_reason(finished) if finished else None,
            "stop_sequence": finished.stop if finished else None,
            "usage": message_usage(finished) if finished else initial_usage(plan),
        }
        return {**reply, "warning": plan.warning} if plan.warning else reply


def stop_reason(finished: Finished) -> StopReason:
    if finished.reason is FinishReason.LENGTH:
        return "max_tokens"
    if finished.num_calls:
        return "tool_use"
    return "end_turn" if finished.stop is None else "stop_sequence"


def initial_usage(plan: ReplyPlan) -> MessageUsage:
    """Of a stream that begins: which part of the prompt is cached is not known yet."""
    return {
        "input_tokens": plan.num_prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
        "output_tokens_details": {"thinking_tokens": 0},
    }


def message_usage(finished: Finished) -> MessageUsage:
    usage = usage_reply([finished])
    cached = usage["cached_input_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"thinking_tokens": usage["reasoning_tokens"]},
    }
