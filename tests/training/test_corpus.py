"""The overlap check."""

from __future__ import annotations

from quicksilver.training.corpus import OverlapCheck


def test_overlap_finds_thirteen_shared_words_only() -> None:
    told = "one two three four five six seven eight nine ten eleven twelve thirteen"
    check = OverlapCheck([told])
    assert check.overlaps(f"He said: {told.upper()}!")
    assert not check.overlaps(told.replace("seven", "7"))
    assert not check.overlaps("short")
