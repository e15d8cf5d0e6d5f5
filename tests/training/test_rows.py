"""The text of a row, for the check against evaluations."""

from __future__ import annotations

import pytest

from quicksilver.editing.prompts import EditRequest
from quicksilver.text.chat import Message
from quicksilver.training.rows import ChatRow, EditRow, FimRow, PlainRow, Row, TextRow, exchange, row_text

ROWS: list[tuple[Row, tuple[str, ...]]] = [
    (ChatRow((Message("user", "ask"), Message("assistant", "answer", reasoning="think"))), ("ask", "answer", "think")),
    (FimRow("before", "middle", "after"), ("beforemiddleafter",)),
    (EditRow(EditRequest("a.py", "top", "region", "end"), "new"), ("topregionend", "new")),
    (PlainRow("prompt", "answer"), ("prompt answer",)),
    (TextRow("running text"), ("running text",)),
]


@pytest.mark.parametrize(("row", "parts"), ROWS)
def test_every_part_of_a_row_is_in_its_text(row: Row, parts: tuple[str, ...]) -> None:
    assert all(part in row_text(row) for part in parts)


def test_an_exchange_is_a_question_and_its_answer() -> None:
    row = exchange("2+3?", "5", domain="think", effort="high")
    assert [(m.role, m.content) for m in row.messages] == [("user", "2+3?"), ("assistant", "5")]
    assert (row.domain, row.effort, row.is_prompt_only) == ("think", "high", False)
