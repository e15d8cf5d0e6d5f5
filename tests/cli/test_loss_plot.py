"""The chart of losses."""

from __future__ import annotations

from quicksilver.cli.loss_plot import plot


def test_a_falling_loss_falls_in_the_chart() -> None:
    lines = plot([4.0, 3.0, 2.0, 1.0], height=4).splitlines()
    assert len(lines) == 4
    assert lines[0].endswith("┤█   ")
    assert lines[-1].endswith("┤████")
    assert "4.000" in lines[0]


def test_long_lines_are_averaged_to_the_width() -> None:
    assert max(map(len, plot([1.0] * 1000, width=30).splitlines())) == 40
    assert plot([]) == ""
