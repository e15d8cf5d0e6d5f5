"""`benchmarks/hybrid_cascade.py`: the curve of a cascade from recorded answers."""

from __future__ import annotations

import pytest

from benchmarks.hybrid_cascade import Solved, curve


def solved(is_right: bool, logprob: float = -0.5, tokens: int = 10, is_complete: bool = True) -> Solved:
    return Solved(is_right, 0, tokens, logprob, is_complete)


def test_a_gate_that_detects_wrong_answers_beats_a_random_choice() -> None:
    small = [solved(True, -0.1), solved(True, -0.2), solved(False, -1.0), solved(False, -2.0)]
    strong = [solved(True)] * 4
    points = curve(small, strong, price=10)
    assert (points[0].accuracy, points[0].cost, points[0].escalated) == (0.5, 10, 0)
    assert (points[-1].accuracy, points[-1].cost, points[-1].escalated) == (1.0, 110, 1)
    best = next(point for point in points if point.escalated == 0.5)
    assert (best.accuracy, best.cost) == (1.0, 60)
    assert best.baseline == pytest.approx(0.5 + 0.5 * 50 / 90)
    assert best.accuracy > best.baseline


def test_costs_rise_with_the_threshold() -> None:
    small = [solved(i % 2 == 0, -i / 10) for i in range(1, 9)]
    points = curve(small, [solved(True, tokens=20)] * 8, price=3)
    costs = [point.cost for point in points]
    assert costs == sorted(costs)


def test_an_answer_that_was_cut_off_is_always_escalated() -> None:
    points = curve([solved(False, -0.1, is_complete=False), solved(True, -0.1)], [solved(True)] * 2, price=2)
    assert points[0].escalated == 0.5
    assert points[0].accuracy == 1.0
