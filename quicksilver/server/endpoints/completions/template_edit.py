"""Next edits that arrive as the prompt of a completion, in the template of an edit model.

The edit is planned as one of `/v1/edit/completions`; the reply is a text completion in the template's own form. An
answer that was cut off or is too unlikely is not offered: the region comes back unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from quicksilver.editing.edit_request import EditRequest
from quicksilver.editing.prompts import rewritten_region
from quicksilver.editing.templates import EditTemplate
from quicksilver.server.endpoints.completions.format import CompletionFormat
from quicksilver.server.endpoints.completions.wire import CompletionBody, TextChunk, TextCompletion
from quicksilver.server.endpoints.edits.edit import is_offered, plan_parsed_edit
from quicksilver.server.endpoints.edits.wire import MAX_EDIT_TOKENS, EditBody, EditMessage
from quicksilver.server.generation.plan import ReplyPlan
from quicksilver.server.services import Services
from quicksilver.text.answer import AnswerPiece, CollectedAnswer, Finished, TextDelta
from quicksilver.text.channels import Channel, ChannelDelta


async def plan_template_edit(
    body: CompletionBody, template: EditTemplate, services: Services, tenant: str
) -> ReplyPlan:
    services.prompts.check_length(_length(template.request), "prompt")
    edit = EditBody(
        model=body.model,
        messages=[EditMessage(role="user", content="")],
        max_tokens=min(body.max_tokens, MAX_EDIT_TOKENS) if body.max_tokens else None,
        temperature=body.temperature or 0.0,
        top_p=body.top_p,
        seed=body.seed,
        decoder=body.decoder,
    )
    plan = await plan_parsed_edit(edit, template.request, services, tenant)
    return replace(plan, id=plan.id.replace("chatcmpl", "cmpl", 1))


def _length(edit: EditRequest) -> int:
    return len(edit.before) + len(edit.region) + len(edit.after) + sum(map(len, edit.history))


class TemplateEditFormat(CompletionFormat):
    """The region is only right as a whole, so a stream sends it in one chunk."""

    def __init__(self, plan: ReplyPlan, body: CompletionBody, services: Services, template: EditTemplate) -> None:
        super().__init__(plan, body, services)
        self._template, self._min_logprob = template, services.config.edit_min_logprob
        self._answer = CollectedAnswer()

    def whole(self, answers: Sequence[CollectedAnswer]) -> TextCompletion:
        return super().whole([replace(answers[0], content=self._text(answers[0]))])

    def chunks(self, index: int, piece: AnswerPiece) -> Iterable[TextChunk]:
        self._answer.add(piece)
        if isinstance(piece, Finished):
            text = ChannelDelta(Channel.CONTENT, self._text(self._answer))
            yield from super().chunks(index, TextDelta((text,)))
            yield from super().chunks(index, piece)

    def _text(self, answer: CollectedAnswer) -> str:
        edit = self._template.request
        is_kept = is_offered(answer, self._min_logprob)
        return self._template.write_reply(rewritten_region(edit, answer.content) if is_kept else edit.region)
