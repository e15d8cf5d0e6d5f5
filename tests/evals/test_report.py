from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.core import FinishReason, Usage
from quicksilver.errors import InvalidRequest
from quicksilver.evals.plot import draw
from quicksilver.evals.report import Cell, Record, Report, machine_facts, read_reports, write_reports
from quicksilver.evals.speed import Speed, speed_of
from quicksilver.evals.table import compare
from quicksilver.evals.task import Answer


def _choice(task: str, value: float) -> Cell:
    return Cell(task, "multiple_choice", "likelihood", ("acc",), {"acc": value}, 10, 0, 1.0)


def _chat(decoder: str, value: float, speed: Speed) -> Cell:
    records = (Record(0, "hello", (("find", "{}"),), {"right": 1.0}), Record(1, error="row_failed: broken"))
    return Cell("sanity", "chat", decoder, ("right",), {"right": value}, 9, 1, 2.0, speed, records=records)


SKILL = Report(
    "skill",
    (
        _choice("piqa", 0.7),
        _choice("sciq", 0.5),
        Cell("wikitext2", "text", "likelihood", ("ppl",), {"ppl": 19.5}, 8, 0, 1.0, is_lower_better=True),
        _chat("ar", 0.9, Speed(9, 100, 90, 90)),
        _chat("verify K=16", 0.8, Speed(9, 100, 90, 60, 30, 450, 30)),
    ),
)
BASE = Report(
    "base",
    (
        _choice("piqa", 0.6),
        _choice("sciq", 0.5),
        Cell("wikitext2", "text", "likelihood", ("ppl",), {"ppl": 23.61}, 8, 0, 1.0, is_lower_better=True),
        _chat("ar", 0.4, Speed(9, 100, 80, 80)),
    ),
)


def test_reports_come_back_from_json_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "out" / "evals.json"
    write_reports([SKILL, BASE], path)
    assert read_reports(path) == [SKILL, BASE]


def test_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evals.json"
    path.write_text("[]")
    with pytest.raises(InvalidRequest, match="not a report"):
        read_reports(path)


def test_table_shows_both_models_and_the_difference() -> None:
    lines = [line.split() for line in compare([SKILL, BASE]).splitlines()]
    assert ["piqa", "acc", "10", "70.0", "60.0", "+10.0"] in lines
    assert ["wikitext2", "ppl", "8", "19.50", "23.61", "-4.11"] in lines
    assert ["multiple", "choice,", "average", "60.0", "55.0", "+5.0"] in lines


def test_model_that_cannot_draft_is_listed_with_every_decoder() -> None:
    lines = [line.split() for line in compare([SKILL, BASE]).splitlines()]
    assert ["sanity", "(ar)", "right", "9", "90.0", "40.0", "+50.0"] in lines
    assert ["sanity", "(verify", "K=16)", "right", "9", "80.0", "40.0", "+40.0"] in lines


def test_costs_are_added_up_by_domain_and_decoder() -> None:
    lines = [line.split() for line in compare([SKILL]).splitlines()]
    assert ["skill", "verify", "K=16", "chat", "90", "1.50", "3.00", "0.07"] in lines
    assert SKILL.speeds()["ar"]["all"].tokens_per_forward == 1.0


def test_decoders_are_compared_with_ar_answer_by_answer() -> None:
    records = (Record(0, "hello", (("find", "{}"),)), Record(1, "else"), Record(2, "more"))
    cell = Cell("sanity", "chat", "edit", ("right",), {}, 3, 0, 1.0, Speed(3, 1, 9, 3), records=records)
    report = Report("skill", (*SKILL.cells, cell))
    assert (report.agreement("edit"), report.agreement("verify K=16")) == ((1, 2), (1, 1))
    assert "skill: edit says what ar says in 1 of 2 answers" in compare([report])


def test_failures_and_time_limits_are_told() -> None:
    cut = Cell("gsm8k", "math", "ar", ("acc",), {"acc": 0.0}, 3, 0, 1.0, is_cut=True)
    text = compare([Report("skill", (*SKILL.cells, cut))])
    assert "sanity (ar): 1 items failed and are left out; the first: row_failed: broken" in text
    assert "gsm8k (ar): stopped by the time limit after 3 items" in text


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


def test_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw([SKILL, BASE], tmp_path / "evals.png")
    assert (tmp_path / "evals.png").read_bytes().startswith(b"\x89PNG")
