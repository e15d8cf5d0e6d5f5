"""Fixed-slot choice: labels as continuations of one prompt, decided by their likelihoods in a single forward.

Each label is scored together with the end of the answer, so that no label gains by being the beginning of another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quicksilver.core import Scores


@dataclass(frozen=True, slots=True)
class Verdict:
    """The likeliest label, and every label's share of the probability."""

    label: str
    probabilities: dict[str, float]


def continuations(
    labels: Sequence[str], encode: Callable[[str], Sequence[int]], end_id: int
) -> tuple[tuple[int, ...], ...]:
    """The token ids of each label, with the end behind it, in the order of `labels`."""
    return tuple((*encode(label), end_id) for label in labels)


def decide(labels: Sequence[str], scores: Scores) -> Verdict:
    """Normalises the likelihoods over the labels; of equals the first wins."""
    shares = softmax([math.fsum(logprobs) for logprobs in scores.logprobs])
    best = max(range(len(labels)), key=shares.__getitem__)
    return Verdict(labels[best], dict(zip(labels, shares, strict=True)))


def softmax(scores: Sequence[float]) -> list[float]:
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
