"""Leg: one target's attempt at a request, and LegOpener, which plans it.

The first target that answers well enough delivers the reply. Every leg has a ledger row of its own, at its own price.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from fastapi import Request

from quicksilver.accounts.records import Idempotency, Order
from quicksilver.core import Usage
from quicksilver.errors import ContextTooLong, PermissionDenied
from quicksilver.server.config import ModelCard
from quicksilver.server.endpoints.chat.choice import plan_choice, without_writing_options
from quicksilver.server.endpoints.chat.format import ChatFormat
from quicksilver.server.endpoints.chat.plan import plan_chat
from quicksilver.server.endpoints.chat.wire import ChatBody
from quicksilver.server.endpoints.decisions.calibration import calibration_of
from quicksilver.server.endpoints.decisions.plan import plan_decisions
from quicksilver.server.endpoints.decisions.wire import DecisionBody, PredicateQuestion
from quicksilver.server.generation.billing import Billing
from quicksilver.server.generation.job import Numbered, ReplyJob
from quicksilver.server.generation.plan import AnswerRequest, ReplyPlan
from quicksilver.server.generation.respond import idempotency_of, order_of, with_scheduling
from quicksilver.server.generation.usage import LegReply
from quicksilver.server.http.fields import PredictionBody, join_text
from quicksilver.server.http.guard import BATCH_CALLER, caller_of
from quicksilver.server.hybrid.answer import UpstreamAnswer, plan_upstream
from quicksilver.server.hybrid.gate import ConfidenceMeter, Evidence, MeteredAnswer, evidence_of
from quicksilver.server.hybrid.policy import GateSettings
from quicksilver.server.hybrid.rules import AUTO
from quicksilver.server.hybrid.state import Hybrid
from quicksilver.server.services import RouteKind, Services
from quicksilver.text.answer import CollectedAnswer


class LegOutcome(StrEnum):
    """`ESCALATED`: the answer did not pass the gate. `SKIPPED`: the target was not called."""

    ANSWERED = "answered"
    ESCALATED = "escalated"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(slots=True)
class LegReport:
    """One leg as the reply lists it."""

    name: str
    outcome: LegOutcome
    reason: str = ""
    usage: Usage = field(default_factory=Usage)
    evidence: Evidence | None = None

    def reply(self) -> LegReply:
        listed: LegReply = {"target": self.name, "outcome": self.outcome.value}
        if self.reason:
            listed["reason"] = self.reason
        if self.outcome in (LegOutcome.ANSWERED, LegOutcome.ESCALATED):
            listed["prompt_tokens"] = self.usage.prompt_tokens
            listed["cached_tokens"] = self.usage.cached_tokens
            listed["completion_tokens"] = self.usage.completion_tokens
        if self.evidence is not None:
            listed["evidence"] = self.evidence.reply()
        return listed


@dataclass(slots=True)
class Leg:
    name: str
    services: Services
    plan: ReplyPlan
    form: ChatFormat
    job: ReplyJob
    order: Order
    meters: tuple[ConfidenceMeter, ...] = ()
    # The pieces of an answer that was read before it is delivered.
    pieces: deque[Numbered] = field(default_factory=deque)
    is_filled: bool = False

    async def fill(self) -> None:
        """Reads the whole answer."""
        while (numbered := await self.job.next_piece()) is not None:
            self.pieces.append(numbered)
        self.is_filled = True

    async def next_piece(self) -> Numbered | None:
        if self.is_filled:
            return self.pieces.popleft() if self.pieces else None
        return await self.job.next_piece()

    @property
    def content(self) -> str:
        """The text of the first answer, after `fill`."""
        answer = CollectedAnswer()
        for index, piece in self.pieces:
            if index == 0:
                answer.add(piece)
        return answer.content


class LegOpener:
    """Plans the legs of one request."""

    def __init__(self, request: Request, body: ChatBody, services: Services, hybrid: Hybrid) -> None:
        caller = caller_of(request)
        self._request, self._body = request, body
        self._services = services
        self._hybrid = hybrid
        self._identity, self._tenant = caller.identity, caller.tenant
        self._is_batch = BATCH_CALLER in request.scope
        self._idempotency: Idempotency | None = None
        if services.accounts is not None:
            self._idempotency = idempotency_of(request, body, services.accounts)

    async def open(self, name: str, gate: GateSettings | None, draft: str = "") -> Leg:
        """Raises what the plan of the target refuses. With a gate, the answer is measured."""
        client = self._hybrid.upstreams.get(name)
        if client is None:
            return await self._open_own(name, gate, draft)
        if not await self.may_leave():
            raise PermissionDenied("the project has not consented")
        plan = plan_upstream(self._body, client, self._services, draft)
        services = as_upstream(self._services, name)
        form = ChatFormat(plan, self._body, services, self._tenant, fingerprint=f"upstream-{name}")
        max_input = sum(answer.max_prompt_tokens for answer in plan.answers if isinstance(answer, UpstreamAnswer))
        order = Order(
            plan.id, name, max_input, plan.max_output_tokens, self._idempotency, price=client.settings.price.price
        )
        return self._leg(name, services, plan, form, order)

    async def may_leave(self) -> bool:
        """Whether the caller's project has consented, now."""
        accounts = self._services.accounts
        if accounts is None or self._identity is None:
            return self._hybrid.policy.anonymous_may_leave
        return await accounts.may_leave(self._identity)

    async def _open_own(self, name: str, gate: GateSettings | None, draft: str) -> Leg:
        services = self._services.for_model(name, RouteKind.CHAT)
        if not services.is_loaded:
            await services.load()
        body = self._body
        if draft and body.prediction is None:
            body = body.model_copy(update={"prediction": PredictionBody(type="content", content=draft)})
        if body.choice is not None:
            body = without_writing_options(body)
            plan = await plan_choice(body, services, self._tenant)
        else:
            plan = await plan_chat(body, services, self._tenant)
        plan = with_scheduling(plan, self._request, services.config, is_background=False)
        if gate is not None:
            plan = replace(plan, answers=tuple(measured(answer, gate) for answer in plan.answers))
        form = ChatFormat(plan, body, services, self._tenant)
        order = order_of(plan, services, self._idempotency, is_batch=self._is_batch)
        return self._leg(name, services, plan, form, order)

    def _leg(self, name: str, services: Services, plan: ReplyPlan, form: ChatFormat, order: Order) -> Leg:
        meters = tuple(answer.meter for answer in plan.answers if isinstance(answer, MeteredAnswer))
        job = ReplyJob(plan, services, is_streamed=bool(self._body.stream))
        return Leg(name, services, plan, form, job, order, meters)

    def billing(self, order: Order | None = None) -> Billing | None:
        """The row of `order`; without one, a row that is never opened, to look up saved replies."""
        accounts = self._services.accounts
        if accounts is None or self._identity is None:
            return None
        order = order or Order("", AUTO, 0, 0, self._idempotency)
        return Billing(accounts, self._identity, order, self._services.in_flight)

    def count(self, reports: Sequence[LegReport]) -> None:
        for report in reports:
            self._services.metrics.count_leg(report.name, report.outcome)

    async def judge(self, leg: Leg, gate: GateSettings) -> Evidence:
        yes = await self._ask(leg, gate.question) if gate.question else None
        return evidence_of(leg.meters, leg.job.finished, yes)

    async def _ask(self, leg: Leg, question: str) -> float | None:
        """The probability of yes; None if the conversation is too long for one more question. It is not charged."""
        lines = [f"{message.role}: {join_text(message.content)}" for message in self._body.messages]
        body = DecisionBody(
            input="\n".join((*lines, f"assistant: {leg.content}")),
            questions=[PredicateQuestion(type="predicate", instructions=question)],
        )
        try:
            plan = await plan_decisions(body, leg.services, self._tenant)
        except ContextTooLong:
            return None
        async with ReplyJob(plan, leg.services) as job:
            await job.start()
            (answer,) = await job.collect()
        return calibration_of(leg.services.model_id).probabilities(answer.decided[0])[0]


def as_upstream(services: Services, name: str) -> Services:
    """The Services of the default model under the name of an upstream, which metrics and formats print."""
    card = ModelCard(id=name, name=name, max_output_len=services.config.card.max_output_len)
    return replace(services, config=replace(services.config, card=card), others={}, root=services.root or services)


def measured(answer: AnswerRequest, gate: GateSettings) -> AnswerRequest:
    """The same answer with a meter. Log-probabilities are computed only if the gate compares them."""
    if type(answer) is not AnswerRequest:
        return answer
    params = answer.request.params
    if params.logprobs is None and (gate.mean_logprob is not None or gate.min_logprob is not None):
        params = replace(params, logprobs=0)
    return MeteredAnswer(replace(answer.request, params=params), answer.options)


def legs_reply(reports: Sequence[LegReport]) -> list[LegReply]:
    return [report.reply() for report in reports]
