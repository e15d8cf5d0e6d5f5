"""Completion rows: a half-typed line at the cursor that the answer completes, and complete code that stays."""

from __future__ import annotations

import random
from typing import Any

from quicksilver.training.rows import EditRow
from quicksilver.training.synthesis.completions import completion_rows
from tests.training.synthesis.test_commits import RECORD

CODE = """def total(items, rate):
    amount = 0
    for item in items:
        amount += item.price
        if item.is_taxed:
            amount += item.price * rate
    return amount


def average(items, rate):
    if not items:
        return 0
    return total(items, rate) / len(items)"""
LONG: dict[str, Any] = {**RECORD, "region": CODE, "target": CODE}


def drawn(count: int = 200) -> list[EditRow]:
    return [row for seed in range(count) for row in completion_rows(LONG, random.Random(seed))]


def test_a_half_typed_line_ends_at_the_cursor_and_the_answer_continues_it() -> None:
    halves = [row for row in drawn() if row.request.region != row.answer]
    assert len(halves) > 40
    for row in halves:
        cursor = row.request.cursor
        assert cursor is not None
        typed, rest = row.request.region[:cursor], row.request.region[cursor:]
        assert not rest or rest.startswith("\n")
        assert row.answer.startswith(typed.rstrip(" "))
        assert row.answer.endswith(rest.lstrip("\n"))
        assert row.answer in CODE


def test_complete_code_stays_with_the_cursor_at_the_end_of_a_line() -> None:
    complete = [row for row in drawn() if row.request.region == row.answer]
    assert len(complete) > 40
    for row in complete:
        assert row.request.cursor is not None
        assert row.request.region[row.request.cursor :][:1] in ("", "\n")


def test_most_rows_have_no_history() -> None:
    rows = drawn()
    assert 0.45 < sum(not row.request.history for row in rows) / len(rows) < 0.75


def test_a_completion_with_unknown_words_is_not_asked_for() -> None:
    strange = {
        **LONG,
        "target": "result = compute_everything(zeta, omega, sigma, delta)  # nothing else is known here",
    }
    rows = [row for seed in range(60) for row in completion_rows(strange, random.Random(seed))]
    for row in rows:
        missing = row.answer.removeprefix(row.request.region)
        assert sum(word in missing for word in ("zeta", "omega", "sigma", "delta")) <= 1


def test_hardly_any_code_gives_no_row() -> None:
    assert not list(completion_rows({**LONG, "target": "x = 1"}, random.Random(0)))
