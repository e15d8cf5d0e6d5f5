"""One bar over the stages of a run: its share, its time left, and where the journals' lines go."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from quicksilver.training.journal import Journal
from quicksilver.training.progress import RunProgress


def test_a_bar_shows_stage_loss_and_time_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    with RunProgress(["skill", "export"], is_shown=True) as progress:
        progress.begin("skill")
        Journal(tmp_path, "skill", stream).report(1, {"loss": 0.5, "eta_s": 75.0})
        shown = progress._bar.tasks[0].description if progress._bar else ""
        progress.begin("export")
    assert shown == "stage 1 of 2: skill, loss 0.500, 1:15 left"
    assert stream.getvalue() == ""
    assert "step 1 loss 0.500" in (tmp_path / "skill.log").read_text()
    assert "done" in capsys.readouterr().err


def test_without_a_terminal_the_lines_are_printed(tmp_path: Path) -> None:
    stream = io.StringIO()
    with RunProgress(["skill"], is_shown=False) as progress:
        progress.begin("skill")
        Journal(tmp_path, "skill", stream).report(1, {"loss": 0.5})
    assert "step 1 loss 0.500" in stream.getvalue()
    assert not (tmp_path / "skill.log").exists()


def test_a_failed_run_leaves_no_listener() -> None:
    with pytest.raises(KeyError), RunProgress(["skill"], is_shown=True):
        raise KeyError
    assert Journal.listener is None
