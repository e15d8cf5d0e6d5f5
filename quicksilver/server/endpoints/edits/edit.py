"""Next edit: an edit body -> a ReplyPlan, and its answer -> the fenced region that editors parse.

An answer that was cut off is not offered: the region comes back unchanged with the finish reason `length`, since
editors insert whatever they get.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from quicksilver.core import DecodeParams, FinishReason, Request
from quicksilver.editing.prompts import (
    EditRequest,
    can_edit,
    edit_fence,
    edit_messages,
    edit_reply,
    parse_edit,
)
from quicksilver.server.endpoints.chat.format import ChatReplyFormat, finish_reason
from quicksilver.server.endpoints.chat.wire import ChatChunk, ChatCompletion
from quicksilver.server.endpoints.completions.plan import code_limit, code_stop_ids
from quicksilver.server.endpoints.edits.wire import EDIT_TOKENS, EditBody
from quicksilver.server.generation.plan import (
    AnswerRequest,
    ReplyPlan,
    limit_tokens,
    plan_reply,
    read_decoder,
    read_seed,
    with_given,
)
from quicksilver.server.http.fields import join_text
from quicksilver.server.services import Services
from quicksilver.text.answer import AnswerPiece, CollectedAnswer, Finished, ReadOptions
from quicksilver.text.conversation import PromptRequest


async def plan_edit(body: EditBody, services: Services, tenant: str) -> tuple[ReplyPlan, EditRequest]:
    text = join_text(body.messages[0].content)
    services.prompts.check_length(len(text), "messages")
    edit = parse_edit(text)
    return await plan_parsed_edit(body, edit, services, tenant), edit


async def plan_parsed_edit(body: EditBody, edit: EditRequest, services: Services, tenant: str) -> ReplyPlan:
    max_new_tokens = code_limit(body.max_tokens or EDIT_TOKENS, services).max_new_tokens
    ids, options = await _edit_prompt(edit, max_new_tokens, services, tenant)
    request = Request("", ids, edit_params(body, max_new_tokens, services), tenant)
    return plan_reply("chatcmpl", body.model, [AnswerRequest(request, options)])


async def _edit_prompt(
    edit: EditRequest, max_new_tokens: int, services: Services, tenant: str
) -> tuple[tuple[int, ...], ReadOptions]:
    """Weights trained on the edit tokens get them; others get an instruction and the beginning of the answer."""
    if can_edit(services.tokenizer):
        max_prompt = services.engine.info.context_len - max_new_tokens
        return await services.prompts.encode_edit(edit, max_prompt, tenant), ReadOptions(is_plain=True)
    ids = await _instruction(edit, max_new_tokens, services, tenant)
    limit_tokens(len(ids), max_new_tokens, services, "messages")
    return ids, ReadOptions(stop=(edit_fence(edit)[1],), is_plain=True)


async def _instruction(edit: EditRequest, max_new_tokens: int, services: Services, tenant: str) -> tuple[int, ...]:
    """With its worked examples if they fit into the context."""
    turns = edit_messages(edit)
    prefill = services.tokenizer.encode(edit_fence(edit)[0])
    whole = await services.prompts.render(PromptRequest(tuple(turns)), tenant)
    if len(whole.ids) + len(prefill) + max_new_tokens <= services.engine.info.context_len:
        return (*whole.ids, *prefill)
    short = await services.prompts.render(PromptRequest(tuple(turns[-1:])), tenant)
    return (*short.ids, *prefill)


def edit_params(body: EditBody, max_new_tokens: int, services: Services) -> DecodeParams:
    roles = services.tokenizer.roles
    stop_ids = code_stop_ids(roles, services.tokenizer.eos_ids)
    tags = tuple(i for i in (roles.edit_open, roles.edit_close) if i is not None)
    return with_given(
        DecodeParams(stop_ids=(*stop_ids, *tags)),
        {
            "max_new_tokens": max_new_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "presence_penalty": body.presence_penalty,
            "seed": read_seed(body.seed),
            "decoder": read_decoder(body.decoder, is_realtime=False, info=services.engine.info),
            "logprobs": None if min_logprob(body, services) is None else 0,
        },
    )


def min_logprob(body: EditBody, services: Services) -> float | None:
    """The log-probability that an edit needs to be offered, or None: that of the request, else that of the server."""
    return services.config.edit_min_logprob if body.min_logprob is None else body.min_logprob


class EditFormat(ChatReplyFormat):
    def __init__(self, plan: ReplyPlan, edit: EditRequest, body: EditBody, services: Services) -> None:
        super().__init__(plan, body, services)
        self._edit, self._min_logprob = edit, min_logprob(body, services)
        self._answer = CollectedAnswer()

    def whole(self, answers: Sequence[CollectedAnswer]) -> ChatCompletion:
        return self.completion([self._fenced(answers[0])], [answers[0].finished])

    def chunks(self, index: int, piece: AnswerPiece) -> Iterable[ChatChunk]:
        """Nothing until the answer has ended; then opening, one delta, closing."""
        self._answer.add(piece)
        if isinstance(piece, Finished):
            yield self.chat_chunks.opening(0)
            yield self.chat_chunks.chunk(0, {"content": self._fenced(self._answer).content})
            yield self.chat_chunks.chunk(0, {}, finish_reason(piece))

    def _fenced(self, answer: CollectedAnswer) -> CollectedAnswer:
        """The rewritten region in a bare fence; the region as it is, if the edit is not offered."""
        is_kept = is_offered(answer, self._min_logprob)
        return replace(answer, content=edit_reply(self._edit, answer.content if is_kept else self._edit.region))


def is_offered(answer: CollectedAnswer, least: float | None) -> bool:
    """Whether the answer was not cut off and, with the token that ends it, has at least this log-probability."""
    end = answer.finished.stop_logprob
    found = [*answer.logprobs, *([] if end is None else [end])]
    is_likely = least is None or sum(token.logprob for token in found) >= least
    return is_likely and answer.finished.reason is not FinishReason.LENGTH
