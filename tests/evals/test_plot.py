"""The figure of several reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.evals.plot import draw
from tests.evals.reports import BASE, SKILL


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
