"""The progress bar of a batch."""

from __future__ import annotations

import pytest

from quicksilver.llm.progress import BatchProgress


def test_a_bar_that_is_not_shown_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with BatchProgress(3, is_shown=False) as progress:
        progress.update(1, 10)
    assert capsys.readouterr() == ("", "")


def test_a_bar_counts_answers_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with BatchProgress(3, is_shown=True) as progress:
        progress.update(2, 10)
        progress.update(1, 10)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "3/3" in printed.err
    assert "tokens/s" in printed.err


def test_the_bar_is_closed_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    progress = BatchProgress(3, is_shown=True)

    def fail() -> None:
        with progress:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert progress._bar is not None
    assert progress._bar.live.is_started is False
