"""Generated sections replace what stands between their markers, and stale pages are reported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import sections

PAGE = "before\n<!-- begin speed -->\nold\n<!-- end speed -->\nafter\n"


def test_section_is_replaced_and_the_rest_stays() -> None:
    filled = sections.fill(PAGE, {"speed": "new"})
    assert filled == "before\n<!-- begin speed -->\nnew\n<!-- end speed -->\nafter\n"


def test_page_without_markers_is_an_error() -> None:
    with pytest.raises(SystemExit, match="begin other"):
        sections.fill(PAGE, {"other": "new"})


def test_check_reports_a_stale_page_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    monkeypatch.setattr(sections, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["tool", "--check"])
    assert sections.write_pages({page: {"speed": "new"}}) == 1
    assert (page.read_text(), "stale: page.md" in capsys.readouterr().out) == (PAGE, True)


def test_without_check_the_page_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    monkeypatch.setattr(sections, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["tool"])
    assert sections.write_pages({page: {"speed": "new"}}, {tmp_path / "images/plot.svg": "<svg/>"}) == 0
    assert "new" in page.read_text()
    assert (tmp_path / "images/plot.svg").read_text() == "<svg/>"


def test_pipes_in_cells_are_escaped() -> None:
    assert sections.table(("a",), [("x | y",)]).splitlines()[-1] == "| x \\| y |"
