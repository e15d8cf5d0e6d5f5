"""HumanEval and MBPP: programs are extracted from answers and run."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.evals.task import Answer
from quicksilver.evals.tasks import (
    programs,
)
from tests.evals.build import write_pack

PROBLEM = programs.Problem("Complete…", "import math\n\ndef f(x):\n", "f", "assert f(1.5) == 1")


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("Sure:\n```python\ndef f(x):\n    return math.floor(x)\n```\nDone.", 1.0),
        ("    return math.floor(x)", 1.0),
        ("```\ndef f(x):\n    return 0\n```", 0.0),
        ("I cannot.", 0.0),
    ],
    ids=["fenced function", "bare body", "wrong", "prose"],
)
def test_program_is_found_in_the_answer_and_run(text: str, is_right: float) -> None:
    assert programs.score(PROBLEM, Answer(text)) == {"pass": is_right}


def test_mbpp_names_its_tests(tmp_path: Path) -> None:
    row = {"task": "mbpp", "text": "Add.", "test_list": ["assert add(1, 2) == 3"], "test_setup_code": ""}
    (problem,) = programs.load_mbpp(write_pack(tmp_path, [row]))
    assert (problem.entry_point, "assert add(1, 2) == 3" in problem.request) == ("add", True)
