"""HumanEval infilling: the result is run against its tests."""

from __future__ import annotations

from quicksilver.evals.task import Answer
from quicksilver.evals.tasks import (
    infilling,
)


def test_infilled_line_is_run_against_the_tests() -> None:
    hole = infilling.Hole(
        "def f(x):\n", "    return y\n", "    y = x + 1\n", "def check(c):\n    assert c(1) == 2\ncheck(f)"
    )
    metrics = infilling.score(hole, Answer("    y = 1 + x"))
    assert (metrics["pass"], metrics["exact"], metrics["longer"]) == (1.0, 0.0, 0.0)
    assert infilling.score(hole, Answer("    y = x"))["pass"] == 0.0
