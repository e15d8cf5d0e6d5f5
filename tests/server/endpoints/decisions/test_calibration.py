"""Temperatures of the models, and the calibration error that is published with them."""

from __future__ import annotations

import math

import pytest

from quicksilver.server.endpoints.decisions.calibration import (
    Calibration,
    calibration_of,
    expected_calibration_error,
)


def test_probabilities_add_up_to_one_and_keep_the_order() -> None:
    shares = Calibration().probabilities([math.log(0.2), math.log(0.1), math.log(0.1)])
    assert shares == pytest.approx((0.5, 0.25, 0.25))


def test_a_higher_temperature_brings_probabilities_together() -> None:
    logprobs = [-1.0, -2.0]
    sharp, flat = (Calibration(t).probabilities(logprobs) for t in (0.5, 4.0))
    assert sharp[0] > flat[0] > 0.5
    assert sum(flat) == pytest.approx(1.0)


def test_very_small_probabilities_do_not_underflow() -> None:
    assert Calibration().probabilities([-2000.0, -2000.0]) == (0.5, 0.5)


def test_a_model_that_is_not_listed_has_temperature_one_and_publishes_nothing() -> None:
    assert calibration_of("somebody/else") == Calibration(1.0, None)


@pytest.mark.parametrize("model", ["nano", "coder-1.5b"])
def test_a_listed_model_publishes_its_errors(model: str) -> None:
    found = calibration_of(model)
    assert found.reply is not None
    assert found.temperature == found.reply["temperature"] > 0
    assert found.reply["ece"] <= found.reply["ece_uncalibrated"]
    assert found.reply["n"] > 100


@pytest.mark.parametrize(
    ("confidences", "hits", "error"),
    [
        ([], [], 0.0),
        ([1.0, 1.0], [True, True], 0.0),
        ([1.0, 1.0], [True, False], 0.5),
        ([0.75, 0.75, 0.75, 0.75], [True, True, True, False], 0.0),
        # Two bins: 0.9 too confident by 0.9, 0.1 by 0.1.
        ([0.9, 0.1], [False, False], 0.5),
    ],
)
def test_the_error_is_the_distance_of_confidence_and_accuracy(
    confidences: list[float], hits: list[bool], error: float
) -> None:
    assert expected_calibration_error(confidences, hits) == pytest.approx(error)
