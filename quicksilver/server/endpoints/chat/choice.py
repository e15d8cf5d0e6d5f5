"""`choice`: the likeliest of the caller's labels, decided by scoring all of them after one prompt.

The temperature has no effect. The tokens of all labels are reserved and charged, since each of them is computed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from quicksilver.constrain import choice
from quicksilver.core import EngineClient, FinishReason, ScoreRequest, Scores, Usage
from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.chat.plan import plan_chat
from quicksilver.server.endpoints.chat.wire import ChatBody
from quicksilver.server.generation.plan import AnswerRequest, ReplyPlan
from quicksilver.server.services import Services
from quicksilver.text.answer import AnswerPiece, Finished, TextDelta
from quicksilver.text.channels import Channel, ChannelDelta
from quicksilver.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ChoiceRequest(AnswerRequest):
    """An answer that is one of `labels`; `max_new_tokens` of the request counts the tokens of all of them."""

    labels: tuple[str, ...] = ()
    # The token ids of each label, each followed by the end of the answer.
    continuations: tuple[tuple[int, ...], ...] = ()

    async def pieces(self, engine: EngineClient, tokenizer: Tokenizer) -> AsyncGenerator[AnswerPiece, None]:
        request, num_tokens = self.request, sum(map(len, self.continuations))
        scores = await self._score(engine)
        decided = choice.decide(self.labels, scores)
        used = scores.usage
        usage = Usage(
            len(request.prompt_ids), used.cached_tokens, num_tokens, forwards=max(1, used.forwards), rows=used.rows
        )
        yield TextDelta(
            (ChannelDelta(Channel.CONTENT, decided.label),), num_tokens=num_tokens, cached_tokens=usage.cached_tokens
        )
        probabilities = {label: round(share, 6) for label, share in decided.probabilities.items()}
        yield Finished(FinishReason.STOP, usage, probabilities=probabilities)

    async def _score(self, engine: EngineClient) -> Scores:
        request = self.request
        try:
            return await engine.score(ScoreRequest(request.id, request.prompt_ids, self.continuations, request.tenant))
        except InvalidRequest as refusal:
            # The engine names its own field; the caller's is `choice`.
            refusal.param = "choice"
            raise


def without_writing_options(body: ChatBody) -> ChatBody:
    """The body without the options that have no meaning for a label. Reasoning before a label would be unbounded."""
    return body.model_copy(update={"reasoning_effort": "none", "reasoning_summary": None, "diffusing": None})


async def plan_choice(body: ChatBody, services: Services, tenant: str) -> ReplyPlan:
    labels = check_choice(body)
    encoded = dict(zip(labels, await services.prompts.encode(labels, tenant, "choice"), strict=True))
    ids = choice.continuations(labels, encoded.__getitem__, services.tokenizer.eos_ids[0])
    bounded = body.model_copy(update={"max_tokens": max(map(len, ids)), "max_completion_tokens": None})
    plan = await plan_chat(bounded, services, tenant)
    (answer,) = plan.answers
    if answer.request.params.max_new_tokens < max(map(len, ids)):
        raise InvalidRequest("choice: the longest label does not fit after the prompt", param="choice")
    params = replace(answer.request.params, max_new_tokens=sum(map(len, ids)))
    scored = ChoiceRequest(replace(answer.request, params=params), answer.options, labels, ids)
    return replace(plan, answers=(scored,))


def check_choice(body: ChatBody) -> tuple[str, ...]:
    labels = tuple(body.choice or ())
    if len(set(labels)) < len(labels):
        raise InvalidRequest("choice: a label comes twice", param="choice")
    for name in ("tools", "response_format", "logprobs"):
        if getattr(body, name):
            raise InvalidRequest(f"choice: cannot be combined with {name}", param="choice")
    if (body.n or 1) > 1:
        raise InvalidRequest("choice: there is one answer, so n is 1", param="n")
    return labels
