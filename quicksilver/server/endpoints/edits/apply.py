"""Apply: an update merged into a file. Unchanged text is copied; ambiguous spans are rewritten by the model.

A span whose rewriting was cut off or lost code keeps its original text, and `warning` names that. The finish reason of
a cut one is `length`. If nothing is ambiguous
the engine is not called and the usage is zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from quicksilver.core import DecodeParams, FinishReason, Request
from quicksilver.editing.apply import Copy, MergedPart, Rewrite, checked_reply, merge, parse_apply, rewrite_messages
from quicksilver.server.endpoints.chat.format import ChatReplyFormat, finish_reason
from quicksilver.server.endpoints.chat.prompt import read_messages
from quicksilver.server.endpoints.chat.wire import ChatChunk, ChatCompletion
from quicksilver.server.endpoints.edits.wire import ApplyBody
from quicksilver.server.generation.plan import (
    AnswerRequest,
    ReplyPlan,
    add_warning,
    limit_tokens,
    plan_reply,
    read_decoder,
    read_seed,
    with_given,
)
from quicksilver.server.http.fields import join_text
from quicksilver.server.services import Services
from quicksilver.text.answer import AnswerPiece, CollectedAnswer, Finished, ReadOptions
from quicksilver.text.chat import PromptRequest, RenderedPrompt

APPLY_TOKENS = 8192
UNCHANGED_WARNING = (
    "Part of the update was not applied: its place in the file is ambiguous and the model's rewriting was cut off or "
    "lost code. The affected lines are unchanged. Show more of the surrounding lines in the update."
)


async def plan_apply(body: ApplyBody, services: Services, tenant: str) -> tuple[ReplyPlan, tuple[MergedPart, ...]]:
    """The parts are in the order of the reply; the n-th Rewrite belongs to the n-th answer."""
    read_messages(body.messages)
    text = join_text(body.messages[-1].content)
    services.prompts.check_length(len(text), "messages")
    parts = await asyncio.to_thread(find_parts, text)
    requests = [PromptRequest(tuple(rewrite_messages(part))) for part in parts if isinstance(part, Rewrite)]
    prompts = [await services.prompts.render(request, tenant) for request in requests]
    answers = [_make_answer(prompt, body, services, tenant) for prompt in prompts]
    return plan_reply("chatcmpl", body.model, answers), parts


def find_parts(prompt: str) -> tuple[MergedPart, ...]:
    request = parse_apply(prompt)
    return tuple(merge(request.original, request.update))


def _make_answer(prompt: RenderedPrompt, body: ApplyBody, services: Services, tenant: str) -> AnswerRequest:
    limit = limit_tokens(len(prompt.ids), body.max_tokens or APPLY_TOKENS, services, "messages")
    params = with_given(
        DecodeParams(stop_ids=services.tokenizer.eos_ids),
        {
            "max_new_tokens": limit.max_new_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "seed": read_seed(body.seed),
            "decoder": read_decoder(body.decoder, is_realtime=False, info=services.engine.info),
        },
    )
    options = ReadOptions(opens_thinking=prompt.opens_thinking)
    return AnswerRequest(Request("", prompt.ids, params, tenant), options)


def rewritten_text(part: Rewrite, answer: CollectedAnswer) -> str | None:
    """None if the rewriting was cut off or lost code: the part then stays as it was."""
    is_cut = answer.finished.reason is FinishReason.LENGTH
    return None if is_cut else checked_reply(part, answer.content)


def joint_finish(finished: Sequence[Finished]) -> Finished:
    """How the whole reply ended: cut off if any part was."""
    is_cut = any(each.reason is FinishReason.LENGTH for each in finished)
    return Finished(FinishReason.LENGTH if is_cut else FinishReason.STOP)


class ApplyFormat(ChatReplyFormat):
    """A stream sends the merged file in order: a part is sent once every part before it is complete."""

    def __init__(self, plan: ReplyPlan, parts: Sequence[MergedPart], body: ApplyBody, services: Services) -> None:
        super().__init__(plan, body, services)
        self._parts = parts
        self._answers = [CollectedAnswer() for _ in plan.answers]
        self._is_finished = [False for _ in plan.answers]
        self._next_part = 0
        self._next_answer = 0
        self._has_unchanged = False

    def whole(self, answers: Sequence[CollectedAnswer]) -> ChatCompletion:
        left, finished = iter(answers), [answer.finished for answer in answers]
        texts = [part.text if isinstance(part, Copy) else self._rewritten(part, next(left)) for part in self._parts]
        merged = CollectedAnswer(content="".join(texts), finished=joint_finish(finished))
        reply = self.completion([merged], finished)
        if self._has_unchanged:
            reply["warning"] = add_warning(reply["warning"], UNCHANGED_WARNING)
        return reply

    def begin(self) -> Iterable[ChatChunk]:
        yield self.chat_chunks.opening(0)
        yield from self._complete_parts()

    def chunks(self, index: int, piece: AnswerPiece) -> Iterable[ChatChunk]:
        self._answers[index].add(piece)
        if isinstance(piece, Finished):
            self._is_finished[index] = True
            yield from self._complete_parts()

    def end(self, finished: Sequence[Finished]) -> Iterable[ChatChunk]:
        last = self.chat_chunks.chunk(0, {}, finish_reason(joint_finish(finished)))
        if self._has_unchanged:
            last["warning"] = UNCHANGED_WARNING
        yield last
        yield from super().end(finished)

    def _rewritten(self, part: Rewrite, answer: CollectedAnswer) -> str:
        text = rewritten_text(part, answer)
        self._has_unchanged |= text is None
        return part.original if text is None else text

    def _complete_parts(self) -> Iterator[ChatChunk]:
        while self._next_part < len(self._parts):
            part = self._parts[self._next_part]
            if isinstance(part, Copy):
                text = part.text
            elif self._is_finished[self._next_answer]:
                text = self._rewritten(part, self._answers[self._next_answer])
                self._next_answer += 1
            else:
                return
            self._next_part += 1
            if text:
                yield self.chat_chunks.chunk(0, {"content": text})
