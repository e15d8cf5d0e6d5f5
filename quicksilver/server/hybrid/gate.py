"""The confidence of an answer, measured while it is generated, and the gate that compares it with thresholds.

Nothing is estimated: log-probabilities, accepted drafts and the end of the answer are counts of the engine.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from quicksilver.core import (
    Delta,
    EngineClient,
    Event,
    FinishReason,
    Request,
)
from quicksilver.server.adapters import WrappedEngine
from quicksilver.server.generation.plan import AnswerRequest
from quicksilver.server.hybrid.policy import GateSettings
from quicksilver.text.answer import AnswerPiece, Finished
from quicksilver.text.tokenizer import Tokenizer


@dataclass(slots=True)
class ConfidenceMeter:
    """Sums over the tokens of one answer, in every channel."""

    total: float = 0.0
    least: float = 0.0
    num_tokens: int = 0

    def add(self, delta: Delta) -> None:
        """A token that a grammar or a budget forced has the log-probability 0 and is not counted."""
        values = [each.logprob for each in delta.logprobs]
        if values:
            self.total += sum(values)
            self.least = min(self.least, *values)
            self.num_tokens += max(len(values) - delta.num_forced, 0)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about a finished answer. None where it was not measured."""

    mean_logprob: float | None = None
    min_logprob: float | None = None
    acceptance: float | None = None
    is_complete: bool = True
    # The probability that the gate's question is answered with yes.
    yes: float | None = None

    def reply(self) -> dict[str, float | bool]:
        values = {
            "mean_logprob": self.mean_logprob,
            "min_logprob": self.min_logprob,
            "acceptance": self.acceptance,
            "yes": self.yes,
        }
        return {"complete": self.is_complete, **{k: round(v, 4) for k, v in values.items() if v is not None}}


def evidence_of(meters: Sequence[ConfidenceMeter], finished: Sequence[Finished], yes: float | None = None) -> Evidence:
    """Of several answers to one request, the least confident one counts. An answer that was chosen from labels is one
    token with the probability of its label."""
    measured = [meter for meter in meters if meter.num_tokens]
    for each in finished:
        if each.probabilities:
            chosen = math.log(max(*each.probabilities.values(), 1e-9))
            measured.append(ConfidenceMeter(chosen, chosen, 1))
    shares = [each.usage.accepted / each.usage.drafted for each in finished if each.usage.drafted]
    return Evidence(
        mean_logprob=min((meter.total / meter.num_tokens for meter in measured), default=None),
        min_logprob=min((meter.least for meter in measured), default=None),
        acceptance=min(shares, default=None),
        is_complete=all(each.reason is not FinishReason.LENGTH for each in finished),
        yes=yes,
    )


def find_doubt(gate: GateSettings, evidence: Evidence) -> str | None:
    """Why the answer does not pass the gate, or None. A value that was not measured does not fail."""
    if gate.complete and not evidence.is_complete:
        return "the token limit cut the answer off"
    bounds = (
        ("mean log-probability", evidence.mean_logprob, gate.mean_logprob),
        ("least log-probability", evidence.min_logprob, gate.min_logprob),
        ("acceptance", evidence.acceptance, gate.acceptance),
        ("probability of yes", evidence.yes, gate.question_probability if gate.question else None),
    )
    for name, value, bound in bounds:
        if value is not None and bound is not None and (value < bound or math.isnan(value)):
            return f"{name} {value:.3f} is below {bound:g}"
    return None


@dataclass(frozen=True, slots=True)
class MeteredAnswer(AnswerRequest):
    """An answer whose log-probabilities are measured, whether or not the reply lists them."""

    meter: ConfidenceMeter = field(default_factory=ConfidenceMeter)

    async def pieces(self, engine: EngineClient, tokenizer: Tokenizer) -> AsyncGenerator[AnswerPiece, None]:
        plain = AnswerRequest(self.request, self.options)
        async with aclosing(plain.pieces(MeteredEngine(engine, self.meter), tokenizer)) as found:
            async for piece in found:
                yield piece


class MeteredEngine(WrappedEngine):
    """Passes every delta to a meter."""

    def __init__(self, engine: EngineClient, meter: ConfidenceMeter) -> None:
        super().__init__(engine)
        self.meter = meter

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        async with aclosing(self.engine.stream(request)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    self.meter.add(event)
                yield event
