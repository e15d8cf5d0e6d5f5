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


def test_a_segment_that_only_ends_blocks_is_left_out() -> None:
    segments = split_update("void f() {\n  // ...\n  x();\n  // ...\n}\n\n// ...\n}  // namespace a\n")
    assert [segment.lines for segment in segments] == [("void f() {",), ("  x();",)]


@pytest.mark.parametrize(
    "update",
    [
        "class First {\n  // ...\n};\n\nclass New {\n  int one;\n  int two;\n};",
        "class First {\n  // ...\nclass New {\n  int one;\n  int two;\n};",
        "class First {\n  int one;\n};\n\nclass New {\n  // ...\n  int three;",
    ],
)
def test_lines_of_the_file_do_not_become_the_body_of_a_new_block(update: str) -> None:
    source = Source("class First {\n  int zero;\n  int one;\n  int two;\n};\n\nint three;\n")
    low, changes = 0, list[Change]()
    for segment in split_update(update):
        changes.append(plan_change(source, segment, low))
        low = max(low, changes[-1].end or 0)
    assert any(change.lines is None for change in changes)
