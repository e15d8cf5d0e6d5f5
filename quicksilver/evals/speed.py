"""What answers cost, added up from `Usage`: tokens per forward, tokens per round, acceptance.

The token that ends an answer counts, since a forward had to find it; so plain autoregression has one token a forward.
A round is a draft and the verification behind it, in two forwards or in one. Answers cut by a stop string have no usage
and are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quicksilver.core import FinishReason
from quicksilver.evals.task import Answer


@dataclass(frozen=True, slots=True)
class Speed:
    answers: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    forwards: int = 0
    rounds: int = 0
    """Of `verify`; 0 under other decoders."""
    drafted: int = 0
    accepted: int = 0

    def __add__(self, other: Speed) -> Speed:
        return Speed(*(getattr(self, name) + getattr(other, name) for name in Speed.__slots__))

    @property
    def tokens_per_forward(self) -> float | None:
        return self.tokens / self.forwards if self.forwards else None

    @property
    def tokens_per_round(self) -> float | None:
        return self.tokens / self.rounds if self.rounds else None

    @property
    def acceptance(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None


def speed_of(answer: Answer) -> Speed:
    usage = answer.usage
    if usage is None:
        return Speed()
    tokens = usage.completion_tokens + (answer.finish is FinishReason.STOP)
    return Speed(1, usage.prompt_tokens, tokens, usage.forwards, usage.rounds, usage.drafted, usage.accepted)


def total(speeds: Iterable[Speed]) -> Speed:
    return sum(speeds, Speed())
