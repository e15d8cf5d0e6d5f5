"""Apply-edit rows."""

from __future__ import annotations

from quicksilver.editing.hunks import hunks
from quicksilver.training.synthesis.apply import snippet


def test_a_snippet_shows_changes_and_elides_the_rest() -> None:
    old = [f"line {i}" for i in range(12)]
    new = [*old[:6], "changed", *old[7:]]
    shown = snippet(old, hunks(old, new), context=1)
    assert shown == ["# ... existing code ...", "line 5", "changed", "line 7", "# ... existing code ..."]
