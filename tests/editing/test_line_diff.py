"""Differences of two lists of lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quicksilver.editing.line_diff import MAX_CELLS, Difference, differences

LINES = st.lists(st.sampled_from("aabcdefgh"), max_size=12)


@given(LINES, LINES)
def test_the_lines_between_differences_are_equal(old: list[str], new: list[str]) -> None:
    at, new_at = 0, 0
    for each in (*differences(old, new), Difference(len(old), len(old), len(new), len(new))):
        assert old[at : each.start] == new[new_at : each.new_start]
        at, new_at = each.end, each.new_end


def test_a_changed_line_is_one_difference() -> None:
    assert list(differences(["a", "b", "c"], ["a", "x", "c"])) == [Difference(1, 2, 1, 2)]
    assert list(differences(["a", "c"], ["a", "b", "c"])) == [Difference(1, 1, 1, 2)]
    assert list(differences(["a", "b"], ["a", "b"])) == []


def test_lines_that_occur_once_are_matched_across_repeated_ones() -> None:
    old = ["{", "one", "}", "", "{", "two", "}", "", "{", "three", "}"]
    assert list(differences(old, [*old[:4], *old[8:]])) == [Difference(5, 9, 5, 5)]


def test_a_moved_line_is_removed_and_added() -> None:
    assert list(differences(["a", "b", "c", "d"], ["b", "c", "a", "d"])) == [
        Difference(0, 1, 0, 0),
        Difference(3, 3, 2, 3),
    ]


def test_long_runs_of_repeated_lines_count_as_different() -> None:
    length = int(MAX_CELLS**0.5) + 10
    old, new = ["a", "b"] * length, ["b", "a"] * length
    assert list(differences(old, new)) == [Difference(0, len(old), 0, len(new))]
