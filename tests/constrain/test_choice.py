"""Choice among labels by likelihood."""

from __future__ import annotations

import math

import pytest

from quicksilver.constrain.choice import continuations, decide, softmax
from quicksilver.core import Scores


def test_labels_are_scored_with_the_stop_token() -> None:
    assert continuations(["ab", "a"], lambda text: list(text.encode()), 9) == ((97, 98, 9), (97, 9))


def test_probabilities_are_shares_among_the_labels() -> None:
    scores = Scores(((math.log(0.1), math.log(0.5)), (math.log(0.15),), (math.log(0.05),)))
    verdict = decide(["a", "b", "c"], scores)
    assert verdict.label == "b"
    assert verdict.probabilities == pytest.approx({"a": 0.2, "b": 0.6, "c": 0.2})


def test_probabilities_of_unlikely_labels_sum_to_one() -> None:
    assert math.fsum(softmax([-5000.0, -5001.0])) == pytest.approx(1)


def test_of_equal_labels_the_first_is_chosen() -> None:
    assert decide(["x", "y"], Scores(((-1.0,), (-1.0,)))).label == "x"
