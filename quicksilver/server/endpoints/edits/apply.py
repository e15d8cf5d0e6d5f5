"""Apply: an update merged into a file. Unchanged text is copied; ambiguous spans are rewritten by the model.

A span whose rewriting was cut off or lost code keeps its original text, and `warning` names that. The finish reason of
a cut one is `length`. If nothing is ambiguous, or the texts are too costly to merge, the engine is not called and the
usage is zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from quicksilver.core import DecodeParams, FinishReason, Request
from quicksilver.editing.apply import ApplyRequest, Copy, MergedPart, Rewrite, parse_apply, rewrite_messages
from quicksilver.server.endpoints.chat.format import ChatReplyFormat, finish_reason
from quicksilver.server.endpoints.chat.plan import read_messages
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
NOT_MERGED_WARNING = (
    "The update was not applied: merging it takes more time or memory than allowed. The file is unchanged. Send a "
    "shorter file, or an update whose code is nested less deeply."
)


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The parts of the file in the order of the reply; the n-th Rewrite belongs to the n-th answer of `reply`."""

    reply: ReplyPlan
    parts: tuple[MergedPart, ...]
    tenant: str
    # Why the update, or a part of it, was not applied.
    warning: str | None = None


async def plan_apply(body: ApplyBody, services: Services, tenant: str) -> MergePlan:
    read_messages(body.messages)
    text = join_text(body.messages[-1].content)
    services.prompts.check_length(len(text), "messages")
    request = parse_apply(text)
    parts = await services.merger.merge(request, tenant)
    if parts is None:
        return _unchanged(request, body, tenant)
    requests = [PromptRequest(tuple(rewrite_messages(part))) for part in parts if isinstance(part, Rewrite)]
    prompts = [await services.prompts.render(request, tenant) for request in requests]
    answers = [_make_answer(prompt, body, services, tenant) for prompt in prompts]
    return MergePlan(plan_reply("chatcmpl", body.model, answers), parts, tenant)


def _unchanged(request: ApplyRequest, body: ApplyBody, tenant: str) -> MergePlan:
    """The file as it was, with a warning."""
    return MergePlan(plan_reply("chatcmpl", body.model, []), (Copy(request.original),), tenant, NOT_MERGED_WARNING)


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


def joint_finish(finished: Sequence[Finished]) -> Finished:
    """How the whole reply ended: cut off if any part was."""
    is_cut = any(each.reason is FinishReason.LENGTH for each in finished)
    return Finished(FinishReason.LENGTH if is_cut else FinishReason.STOP)


class ApplyFormat(ChatReplyFormat):
    """A stream sends the merged file in order: a part is sent once every part before it is complete."""

    def __init__(self, plan: MergePlan, body: ApplyBody, services: Services) -> None:
        super().__init__(plan.reply, body, services)
        self._parts = plan.parts
        self._rewrites = [part for part in plan.parts if isinstance(part, Rewrite)]
        self._merger, self._tenant = services.merger, plan.tenant
        self._answers = [CollectedAnswer() for _ in plan.reply.answers]
        # The final text of each rewritten part, once its answer is complete and checked.
        self._texts: dict[int, str] = {}
        self._next_part = 0
        self._next_answer = 0
        self._warning = plan.warning

    async def prepare(self, answers: Sequence[CollectedAnswer]) -> None:
        for index, answer in enumerate(answers):
            await self._check(index, answer)

    def whole(self, answers: Sequence[CollectedAnswer]) -> ChatCompletion:
        left, finished = iter(range(len(answers))), [answer.finished for answer in answers]
        texts = [part.text if isinstance(part, Copy) else self._texts[next(left)] for part in self._parts]
        merged = CollectedAnswer(content="".join(texts), finished=joint_finish(finished))
        reply = self.completion([merged], finished)
        reply["warning"] = add_warning(reply["warning"], self._warning)
        return reply

    def begin(self) -> Iterable[ChatChunk]:
        yield self.chat_chunks.opening(0)
        yield from self._complete_parts()

    async def receive(self, index: int, piece: AnswerPiece) -> None:
        self._answers[index].add(piece)
        if isinstance(piece, Finished):
            await self._check(index, self._answers[index])

    def chunks(self, index: int, piece: AnswerPiece) -> Iterable[ChatChunk]:
        if isinstance(piece, Finished):
            yield from self._complete_parts()

    def end(self, finished: Sequence[Finished]) -> Iterable[ChatChunk]:
        last = self.chat_chunks.chunk(0, {}, finish_reason(joint_finish(finished)))
        if self._warning is not None:
            last["warning"] = self._warning
        yield last
        yield from super().end(finished)

    async def _check(self, index: int, answer: CollectedAnswer) -> None:
        """Sets the text of a rewritten part. It stays as it was if the rewriting was cut off or lost code."""
        part, is_cut = self._rewrites[index], answer.finished.reason is FinishReason.LENGTH
        text = None if is_cut else await self._merger.check(part, answer.content, self._tenant)
        self._texts[index] = part.original if text is None else text
        if text is None:
            self._warning = UNCHANGED_WARNING

    def _complete_parts(self) -> Iterator[ChatChunk]:
        while self._next_part < len(self._parts):
            part = self._parts[self._next_part]
            if isinstance(part, Copy):
                text = part.text
            elif self._next_answer in self._texts:
                text = self._texts[self._next_answer]
                self._next_answer += 1
            else:
                return
            self._next_part += 1
            if text:
                yield self.chat_chunks.chunk(0, {"content": text})
