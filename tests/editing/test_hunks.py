"""Changed runs of lines."""

from __future__ import annotations

from quicksilver.editing.hunks import Hunk, hunks


def test_a_hunk_has_the_lines_before_and_after() -> None:
    assert hunks(["a", "b", "c"], ["a", "x", "y", "c"]) == [Hunk(1, 2, ("b",), ("x", "y"))]
    assert hunks(["a"], ["a"]) == []


def test_a_diff_has_a_head_and_no_context() -> None:
    assert Hunk(1, 2, ("b",), ("x", "y")).diff("f.py") == "--- f.py\n+++ f.py\n@@ -2,1 +2,2 @@\n-b\n+x\n+y"
