"""Choice among labels by their likelihoods as continuations of one prompt.

Each label is scored together with the stop token, so that a label that is a prefix of another has no advantage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quicksilver.core import Scores


@dataclass(frozen=True, slots=True)
class ChoiceResult:
    """The likeliest label, and the probability of each label."""

    label: str
    probabilities: dict[str, float]


def continuations(
    labels: Sequence[str], encode: Callable[[str], Sequence[int]], end_id: int
) -> tuple[tuple[int, ...], ...]:
    """The token ids of each label followed by the stop token, in the order of `labels`."""
    return tuple((*encode(label), end_id) for label in labels)


def decide(labels: Sequence[str], scores: Scores) -> ChoiceResult:
    """Normalises the likelihoods over the labels. Of equal labels the first is chosen."""
    shares = softmax([math.fsum(logprobs) for logprobs in scores.logprobs])
    best = max(range(len(labels)), key=shares.__getitem__)
    return ChoiceResult(labels[best], dict(zip(labels, shares, strict=True)))


def softmax(scores: Sequence[float]) -> list[float]:
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
