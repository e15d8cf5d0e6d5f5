"""`choice`: one of the caller's labels, decided by their likelihoods in a single forward instead of by writing.

The likeliest wins, whatever the temperature; the probabilities are returned beside it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from quicksilver.constrain import choice
from quicksilver.core import FinishReason, ScoreRequest, Usage
from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.chat.wire import ChatBody
from quicksilver.server.generation.answer import Ask, Ended
from quicksilver.server.generation.collect import Whole
from quicksilver.server.generation.job import Job
from quicksilver.server.generation.plan import Plan, plan_chat
from quicksilver.server.services import Services


@dataclass(frozen=True, slots=True)
class Ballot:
    plan: Plan
    labels: tuple[str, ...]
    continuations: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    answer: Whole
    probabilities: dict[str, float]


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


async def plan_choice(body: ChatBody, services: Services, tenant: str) -> Ballot:
    labels = check_choice(body)
    tokenizer = services.tokenizer
    ids = await asyncio.to_thread(choice.continuations, labels, tokenizer.encode, tokenizer.eos_ids[0])
    longest = max(map(len, ids))
    # An unbounded thinking channel has no place before a label, so effort is none here.
    body = body.model_copy(update={"reasoning_effort": "none", "max_tokens": longest, "max_completion_tokens": None})
    plan = await plan_chat(body, services, tenant)
    if plan.warning is not None:
        raise InvalidRequest("choice: the longest label does not fit behind the prompt", param="choice")
    return Ballot(replace(plan, num_scored=sum(map(len, ids))), labels, ids)


async def decide(ballot: Ballot, job: Job, services: Services) -> Verdict:
    """Reserves and scores; the caller settles, with the reply it makes of the verdict."""
    await job.reserve()
    ask = ballot.plan.asks[0]
    request = ScoreRequest(ask.request.id, ask.request.prompt_ids, ballot.continuations, ask.request.tenant)
    verdict = choice.decide(ballot.labels, await services.engine.score(request))
    # Every label's rows were computed, so every label's tokens are used, not those of the winner alone.
    ended = _ended(ask, sum(map(len, ballot.continuations)))
    job.note(0, ended)
    probabilities = {label: round(share, 6) for label, share in verdict.probabilities.items()}
    return Verdict(Whole(content=verdict.label, ended=ended), probabilities)


def _ended(ask: Ask, num_tokens: int) -> Ended:
    return Ended(FinishReason.STOP, Usage(len(ask.request.prompt_ids), 0, num_tokens, forwards=1))
