"""Apply-edit rows: a function, an update snippet that elides unchanged code, and the merged function as answer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from quicksilver.editing.apply import Rewrite, rewrite_messages
from quicksilver.editing.hunks import Hunk, hunks
from quicksilver.text.chat import Message
from quicksilver.training.rows import ChatRow

ELISION = "# ... existing code ..."


def apply_rows(edit: Mapping[str, Any], rng: random.Random) -> Iterator[ChatRow]:
    """One row per edit of moderate size."""
    old, new = edit["a"].splitlines(), edit["b"].splitlines()
    if not 6 <= len(old) <= 45 or not 6 <= len(new) <= 45:
        return
    found = hunks(old, new)
    if not 1 <= len(found) <= 3:
        return
    piece = Rewrite("\n".join(old), "\n".join(snippet(old, found, rng.randint(1, 2))))
    turns = (*rewrite_messages(piece), Message("assistant", "```\n" + "\n".join(new) + "\n```"))
    yield ChatRow(turns, domain="edit")


def snippet(old: list[str], found: list[Hunk], context: int) -> list[str]:
    """The changed lines with a little context. Everything between them is one elision line."""
    lines: list[str] = []
    done = 0
    for hunk in found:
        start = max(done, hunk.start - context)
        if start > done:
            indent = old[start][: len(old[start]) - len(old[start].lstrip())] if start < len(old) else ""
            lines.append(indent + ELISION)
        lines += [*old[start : hunk.start], *hunk.new]
        done = min(len(old), hunk.end + context)
        lines += old[hunk.end : done]
    return [*lines, ELISION] if done < len(old) else lines
