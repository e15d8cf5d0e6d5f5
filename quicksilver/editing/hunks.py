"""The changed runs of lines of an edit. Pure functions of text."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines `[start, end)` of a text become `new`."""

    start: int
    end: int
    old: tuple[str, ...]
    new: tuple[str, ...]

    def diff(self, path: str) -> str:
        """The unified diff without context."""
        head = f"@@ -{self.start + 1},{len(self.old)} +{self.start + 1},{len(self.new)} @@"
        lines = [f"--- {path}", f"+++ {path}", head, *(f"-{x}" for x in self.old), *(f"+{x}" for x in self.new)]
        return "\n".join(lines)


def hunks(old: Sequence[str], new: Sequence[str]) -> list[Hunk]:
    codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [Hunk(a, b, tuple(old[a:b]), tuple(new[c:d])) for tag, a, b, c, d in codes if tag != "equal"]
