"""Calibration: the temperature that makes the probabilities of one model match how often it is right.

`calibration.json` beside this file holds the fitted values of the models of the catalogue;
`benchmarks/decisions.py calibrate` fits them. A model that is not listed has temperature 1 and no published error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from typing_extensions import TypedDict

FILE = Path(__file__).with_name("calibration.json")


class CalibrationReply(TypedDict):
    """Of `/v1/models`: expected calibration errors on `n` held-out questions, before and after fitting."""

    temperature: float
    ece: float
    ece_uncalibrated: float
    n: int


@dataclass(frozen=True, slots=True)
class Calibration:
    temperature: float = 1.0
    reply: CalibrationReply | None = None

    def probabilities(self, logprobs: Sequence[float]) -> tuple[float, ...]:
        """Log-probabilities of the options -> probabilities that add up to 1."""
        best = max(logprobs)
        weights = [math.exp((value - best) / self.temperature) for value in logprobs]
        total = math.fsum(weights)
        return tuple(weight / total for weight in weights)


@cache
def _fitted() -> dict[str, CalibrationReply]:
    known: dict[str, CalibrationReply] = json.loads(FILE.read_text())
    return known


def calibration_of(model: str) -> Calibration:
    entry = _fitted().get(model)
    return Calibration(entry["temperature"], entry) if entry else Calibration()


def expected_calibration_error(confidences: Sequence[float], hits: Sequence[bool], num_bins: int = 10) -> float:
    """Mean distance between confidence and accuracy over bins of equal width, weighted by their sizes."""
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    for i, confidence in enumerate(confidences):
        bins[min(int(confidence * num_bins), num_bins - 1)].append(i)
    gaps = (abs(sum(confidences[i] - hits[i] for i in members)) for members in bins)
    return math.fsum(gaps) / max(len(confidences), 1)
