from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rescore import read_reports
from quicksilver.core import FinishReason, Usage
from quicksilver.errors import InvalidRequest
from quicksilver.evals.report import Cell, Record, Report, machine_facts, write_reports
from quicksilver.evals.speed import Speed, speed_of
from quicksilver.evals.table import compare
from quicksilver.evals.task import Answer
from tests.evals.reports import BASE, SKILL


def test_reports_come_back_from_json_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "out" / "evals.json"
    write_reports([SKILL, BASE], path)
    assert read_reports(path) == [SKILL, BASE]


def test_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evals.json"
    path.write_text("[]")
    with pytest.raises(InvalidRequest, match="not a report"):
        read_reports(path)


def test_decoders_are_compared_with_ar_answer_by_answer() -> None:
    records = (Record(0, "hello", (("find", "{}"),)), Record(1, "else"), Record(2, "more"))
    cell = Cell("sanity", "chat", "edit", ("right",), {}, 3, 0, 1.0, Speed(3, 1, 9, 3), records=records)
    report = Report("skill", (*SKILL.cells, cell))
    assert (report.agreement("edit"), report.agreement("verify K=16")) == ((1, 2), (1, 1))
    assert "skill: edit gives the answer of ar in 1 of 2 answers" in compare([report])


def test_end_token_counts_and_rounds_are_the_engines_own_whatever_their_drafts_length() -> None:
    usage = Usage(prompt_tokens=7, completion_tokens=11, forwards=6, drafted=10, accepted=6, rounds=3)
    speed = speed_of(Answer(finish=FinishReason.STOP, usage=usage))
    assert (speed.tokens, speed.rounds, speed.tokens_per_round, speed.tokens_per_forward) == (12, 3, 4.0, 2.0)
    assert speed_of(Answer(finish=FinishReason.LENGTH, usage=usage)).tokens == 11
    assert speed_of(Answer()) == Speed()


def test_machine_facts_name_commit_and_date() -> None:
    facts = machine_facts()
    assert facts["commit"]
    assert facts["date"].endswith("Z")
