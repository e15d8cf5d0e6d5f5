"""Questions for distillation."""

from __future__ import annotations

import random

from quicksilver.training.synthesis.questions import question_rows


def test_questions_leave_the_answer_to_a_teacher() -> None:
    rows = list(question_rows(300, random.Random(1)))
    assert all(row.is_prompt_only and row.messages[1].content == "" for row in rows)
    assert len({row.messages[0].content for row in rows}) > 200
