"""Cost of answers, summed from `Usage`: tokens per forward, tokens per round, acceptance rate.

The end-of-sequence token counts, because a forward produced it. Plain autoregressive decoding therefore has one token
per forward. Answers cut by a stop string have no usage and are excluded.
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
    # Rounds of `verify`; 0 for other decoders.
    rounds: int = 0
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
