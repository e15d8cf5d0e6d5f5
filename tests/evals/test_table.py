"""Reports side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.evals.report import Cell, Report
from quicksilver.evals.table import compare, draw
from tests.evals.reports import BASE, SKILL


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


def test_failures_and_time_limits_are_reported() -> None:
    cut = Cell("gsm8k", "math", "ar", ("acc",), {"acc": 0.0}, 3, 0, 1.0, is_cut=True)
    text = compare([Report("skill", (*SKILL.cells, cut))])
    assert "sanity (ar): 1 items failed and are left out; the first: row_failed: broken" in text
    assert "gsm8k (ar): stopped by the time limit after 3 items" in text


def test_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw([SKILL, BASE], tmp_path / "evals.png")
    assert (tmp_path / "evals.png").read_bytes().startswith(b"\x89PNG")


def test_the_bars_have_the_values_of_the_reports(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw([SKILL, BASE], tmp_path / "figure" / "evals.svg")
    text = (tmp_path / "figure" / "evals.svg").read_text()
    assert "skill, verify K=16" in text
    assert "piqa" in text
    assert "wikitext2" not in text, "a perplexity is no share"
