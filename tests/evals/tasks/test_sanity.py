"""The ten sanity questions."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.evals.task import Answer
from quicksilver.evals.tasks import sanity


def test_there_are_ten_questions_with_distinct_texts() -> None:
    assert len({question.text for question in sanity.load(Path())}) == 10


@pytest.mark.parametrize(
    ("text", "answer", "is_right"),
    [
        ("What is 2 + 2?", "2 + 2 = 4.", True),
        ("What is 2 + 2?", "2 + 2 = 5. No, 4.", False),
        ("List three fruits.", "Apple, pear and plum", True),
        ("List three fruits.", "Apple, pear", False),
        ("Is ice frozen water? Answer yes or no.", "Yes.", True),
        ("Is ice frozen water? Answer yes or no.", "No, yes", False),
    ],
)
def test_answers_are_matched_in_any_casing(text: str, answer: str, is_right: bool) -> None:
    question = next(each for each in sanity.QUESTIONS if each.text == text)
    assert sanity.score(question, Answer(answer)) == {"right": float(is_right)}
