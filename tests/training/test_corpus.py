"""Held-out names and the overlap check."""

from __future__ import annotations

from quicksilver.training.corpus import OverlapCheck, is_held_out


def test_overlap_finds_thirteen_shared_words_only() -> None:
    told = "one two three four five six seven eight nine ten eleven twelve thirteen"
    check = OverlapCheck([told])
    assert check.overlaps(f"He said: {told.upper()}!")
    assert not check.overlaps(told.replace("seven", "7"))
    assert not check.overlaps("short")


def test_holding_out_depends_on_the_name_alone() -> None:
    names = [f"package-{i}" for i in range(2000)]
    held = [name for name in names if is_held_out(name)]
    assert held == [name for name in names if is_held_out(name)]
    assert 60 < len(held) < 190
