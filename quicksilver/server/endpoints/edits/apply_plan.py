"""Apply bodies -> a Plan and the order of its parts: what stays is copied, what is in doubt is asked of the model.

A span whose rewriting was cut off keeps its original text, and the reply says `length`. Where nothing is in doubt the
engine is not asked at all and the usage is zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quicksilver.core import DecodeParams, FinishReason, Request
from quicksilver.editing.apply import Copy, Rewrite, merge, parse_apply, rewrite_messages, rewrite_reply
from quicksilver.server.endpoints.chat.format import Chunks, finish_word
from quicksilver.server.endpoints.chat.prompt import join_parts, read_messages
from quicksilver.server.endpoints.edits.wire import ApplyBody
from quicksilver.server.generation.answer import Ask, Ended, Piece
from quicksilver.server.generation.collect import Whole
from quicksilver.server.generation.plan import Plan, find_room, make_plan
from quicksilver.server.generation.sampling import overlay, pick_decoder, pick_seed
from quicksilver.server.services import Services
from quicksilver.text.chat import PromptRequest, RenderedPrompt

APPLY_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Instruction:
    """A prompt without tags: the model's whole answer is the reply."""


Part = Copy | Rewrite | Instruction


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    plan: Plan
    parts: tuple[Part, ...]
    """In the order of the reply. The n-th that is not a Copy belongs to the n-th ask."""


async def plan_apply(body: ApplyBody, services: Services, tenant: str) -> ApplyPlan:
    services.directory.check(body.model)
    messages = read_messages(body.messages)
    text = join_parts(body.messages[-1].content)
    services.prompts.check_length(len(text), "messages")
    parts = await asyncio.to_thread(find_parts, text)
    asked = [messages if isinstance(p, Instruction) else rewrite_messages(p) for p in parts if not isinstance(p, Copy)]
    requests = [PromptRequest(tuple(question)) for question in asked]
    asks = [_ask(await services.prompts.render(request, tenant), body, services) for request in requests]
    asks = [replace(ask, request=replace(ask.request, tenant=tenant)) for ask in asks]
    return ApplyPlan(make_plan("chatcmpl", body.model, asks), parts)


def find_parts(prompt: str) -> tuple[Part, ...]:
    request = parse_apply(prompt)
    return (Instruction(),) if request is None else tuple(merge(request.original, request.update))


def _ask(prompt: RenderedPrompt, body: ApplyBody, services: Services) -> Ask:
    room = find_room(len(prompt.ids), body.max_tokens or APPLY_TOKENS, services, "messages")
    params = overlay(
        DecodeParams(stop_ids=services.tokenizer.eos_ids),
        {
            "max_new_tokens": room.max_new_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "seed": pick_seed(body.seed),
            "decoder": pick_decoder(body.decoder, is_realtime=False, info=services.engine.info),
        },
    )
    return Ask(Request("", prompt.ids, params), opens_thinking=prompt.opens_thinking)


def part_text(part: Part, answer: Whole) -> str:
    """What an answer puts in its part's place."""
    if not isinstance(part, Rewrite):
        return answer.content
    is_cut = answer.ended.finish is FinishReason.LENGTH
    return part.original if is_cut else rewrite_reply(part, answer.content)


def merged_text(apply: ApplyPlan, answers: Sequence[Whole]) -> str:
    left = iter(answers)
    return "".join(part.text if isinstance(part, Copy) else part_text(part, next(left)) for part in apply.parts)


def joint_end(ended: Sequence[Ended]) -> Ended:
    """One end for the whole reply: cut if any part was."""
    is_cut = any(end.finish is FinishReason.LENGTH for end in ended)
    return Ended(FinishReason.LENGTH if is_cut else FinishReason.STOP)


class ApplyTeller:
    """Streams the merged file in order: copies as soon as nothing is missing before them, rewrites when they end."""

    def __init__(self, apply: ApplyPlan, chunks: Chunks) -> None:
        self._chunks = chunks
        self._parts = list(apply.parts)
        self._answers = [Whole() for _ in apply.plan.asks]
        self._is_done = [False for _ in apply.plan.asks]
        self._next_part = 0
        self._next_ask = 0

    def begin(self) -> Iterator[Mapping[str, Any]]:
        yield self._chunks.opening(0)
        yield from self._flush()

    def tell(self, index: int, piece: Piece) -> Iterator[Mapping[str, Any]]:
        self._answers[index].add(piece)
        if isinstance(piece, Ended):
            self._is_done[index] = True
            yield from self._flush()

    def end(self) -> Iterator[Mapping[str, Any]]:
        yield self._chunks.chunk(0, {}, finish_word(joint_end([answer.ended for answer in self._answers])))

    def _flush(self) -> Iterator[Mapping[str, Any]]:
        while self._next_part < len(self._parts):
            part = self._parts[self._next_part]
            if isinstance(part, Copy):
                text = part.text
            elif self._is_done[self._next_ask]:
                text = part_text(part, self._answers[self._next_ask])
                self._next_ask += 1
            else:
                return
            self._next_part += 1
            if text:
                yield self._chunks.chunk(0, {"content": text})
