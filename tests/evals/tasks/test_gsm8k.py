"""GSM8K: the last number of the answer is scored."""

from __future__ import annotations

from pathlib import Path

from quicksilver.evals.task import Answer
from quicksilver.evals.tasks import (
    gsm8k,
)
from tests.evals.build import write_pack


def test_last_number_of_a_solution_counts(tmp_path: Path) -> None:
    row = {"task": "gsm8k_test", "question": "How much?", "answer": "2 * 600 = <<1200>>\n#### 1,200"}
    (problem,) = gsm8k.load(write_pack(tmp_path, [row]))
    assert gsm8k.score(problem, Answer("First 600, so $1200.00.")) == {"acc": 1.0}
    assert gsm8k.score(problem, Answer("No idea")) == {"acc": 0.0}
