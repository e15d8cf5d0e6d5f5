"""Alignment of a snippet with a file."""

from __future__ import annotations

from quicksilver.editing.align import place

FILE = ["import os", "", "def first():", "    return 1", "", "def second():", "    return 2", ""]


def test_rare_lines_decide_the_position_and_equal_neighbours_are_paired() -> None:
    placement = place(["", "def second():", "    return 3"], FILE, 0)
    assert placement is not None
    assert placement.pairs == ((0, 4), (1, 5))
    assert (placement.first, placement.last, placement.is_ambiguous) == ((0, 4), (1, 5), False)


def test_lines_before_the_start_are_not_used() -> None:
    assert place(["def first():"], FILE, 3) is None


def test_common_and_short_lines_are_no_anchors() -> None:
    assert place(["}", "", "x"], ["}", "", "x"], 0) is None
    assert place(["repeated line"], ["repeated line"] * 9, 0) is None


def test_two_equal_positions_are_ambiguous() -> None:
    block = ["def same():", "    return 1", "# filler", "# other"]
    placement = place(["def same():", "    return 1"], [*block, "x", "y", *block[:2]], 0)
    assert placement is not None
    assert placement.is_ambiguous


def test_pairs_increase_on_both_sides() -> None:
    snippet = ["def second():", "def first():", "    return 2"]
    placement = place(snippet, FILE, 0)
    assert placement is not None
    assert list(placement.pairs) == sorted(set(placement.pairs))
    assert [j for _, j in placement.pairs] == sorted(j for _, j in placement.pairs)
