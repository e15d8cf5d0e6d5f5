"""Segments of an update snippet and the changes they make."""

from __future__ import annotations

import pytest

from quicksilver.editing.splice import Change, Source, balance, plan_change, split_update

TEXT = "import os\n\ndef first():\n    return 1\n\ndef second():\n    return 2\n"


def test_markers_split_an_update() -> None:
    segments = split_update("a\n// ... existing code ...\nb\nc\n# ...\n")
    assert [segment.lines for segment in segments] == [("a",), ("b", "c")]
    assert [(s.is_open_above, s.is_open_below) for s in segments] == [(False, True), (True, True)]


def test_a_changed_line_replaces_the_old_one() -> None:
    (segment,) = split_update("# ... existing code ...\ndef second():\n    return 2 * x")
    change = plan_change(Source(TEXT), segment, 0)
    assert change == Change(5, 7, ("def second():\n", "    return 2 * x\n"))


def test_new_code_at_the_end_is_appended() -> None:
    (segment,) = split_update("# ... existing code ...\n\ndef third():\n    yield 'something else'")
    change = plan_change(Source(TEXT), segment, 0)
    assert (change.start, change.end) == (7, 7)


def test_new_code_without_a_position_is_left_to_the_model() -> None:
    (segment,) = split_update("zzz = 1")
    assert plan_change(Source(TEXT), segment, 0) == Change(0, None)


def test_new_lines_have_the_line_ends_of_the_file() -> None:
    assert Source("a\r\nb\r\n").new(["x", "y\n"]) == ["x\r\n", "y\r\n"]
    assert Source("a\nb").lines == ["a\n", "b"]


@pytest.mark.parametrize(
    ("text", "expected"), [("", (0, 0, 0)), ("f([{", (1, 1, 1)), ("f()]", (0, -1, 0)), ("{}}", (0, 0, -1))]
)
def test_balance_counts_open_brackets(text: str, expected: tuple[int, int, int]) -> None:
    assert balance(text) == expected
