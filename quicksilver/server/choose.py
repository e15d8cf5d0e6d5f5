"""`choice`: one of the caller's labels, decided by their likelihoods in a single forward instead of by writing.

Each label is scored together with the end of the answer, so that a label is not favoured for being the beginning of
another. The likeliest wins, whatever the temperature; the probabilities are returned beside it.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from quicksilver.core import FinishReason, ScoreRequest, Usage
from quicksilver.errors import InvalidRequest
from quicksilver.server.answer import Ask, Ended
from quicksilver.server.collect import Whole
from quicksilver.server.job import Job
from quicksilver.server.plan import Plan, plan_chat
from quicksilver.server.services import Services
from quicksilver.server.wire.chat import ChatBody


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
    continuations = await asyncio.to_thread(_encode, labels, services)
    longest = max(map(len, continuations))
    # An unbounded thinking channel has no place before a label, so effort is none here.
    body = body.model_copy(update={"reasoning_effort": "none", "max_tokens": longest, "max_completion_tokens": None})
    plan = await plan_chat(body, services, tenant)
    if plan.warning is not None:
        raise InvalidRequest("choice: the longest label does not fit behind the prompt", param="choice")
    return Ballot(plan, labels, continuations)


def _encode(labels: tuple[str, ...], services: Services) -> tuple[tuple[int, ...], ...]:
    end_id = services.tokenizer.eos_ids[0]
    return tuple((*services.tokenizer.encode(label), end_id) for label in labels)


async def decide(ballot: Ballot, job: Job, services: Services) -> Verdict:
    """Reserves and scores; the caller settles, with the reply it makes of the verdict."""
    await job.reserve()
    ask = ballot.plan.asks[0]
    request = ScoreRequest(ask.request.id, ask.request.prompt_ids, ballot.continuations, ask.request.tenant)
    scores = await services.engine.score(request)
    shares = softmax([math.fsum(logprobs) for logprobs in scores.logprobs])
    best = max(range(len(shares)), key=shares.__getitem__)
    ended = _ended(ask, len(ballot.continuations[best]) - 1)
    job.note(0, ended)
    probabilities = {label: round(share, 6) for label, share in zip(ballot.labels, shares, strict=True)}
    return Verdict(Whole(content=ballot.labels[best], ended=ended), probabilities)


def _ended(ask: Ask, num_tokens: int) -> Ended:
    return Ended(FinishReason.STOP, Usage(len(ask.request.prompt_ids), 0, num_tokens, forwards=1))


def softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
