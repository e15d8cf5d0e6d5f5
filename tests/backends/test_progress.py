"""Progress of a start: lines with a pause between them, and one at the end."""

from __future__ import annotations

import logging

import pytest

from quicksilver.backends.progress import PAUSE_S, counted


def test_items_are_counted_with_pauses(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0

    def clock() -> float:
        return now

    found = []
    with caplog.at_level(logging.INFO, "quicksilver.start"):
        for item in counted("capturing graphs", "abcdef", clock):
            found.append(item)
            now += PAUSE_S / 2
    assert found == list("abcdef")
    assert caplog.messages == [
        "capturing graphs: 2 of 6",
        "capturing graphs: 4 of 6",
        f"capturing graphs: 6 of 6 in {3 * PAUSE_S:.1f} s",
    ]


def test_nothing_to_do_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "quicksilver.start"):
        assert list(counted("capturing rounds", [], lambda: 1.0)) == []
    assert caplog.messages == ["capturing rounds: 0 of 0 in 0.0 s"]
