"""Fill-in-the-middle rows from source files: mostly single lines, some short blocks, the rest random spans.

Cuts are at characters, not tokens, like the cursor of an editor. The loss covers the whole row, so a long context also
adds training tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from quicksilver.training.rows import FimRow

BEFORE_CHARS, AFTER_CHARS = 1800, 800


def fim_rows(texts: Iterable[str], per_file: int, rng: random.Random) -> Iterator[FimRow]:
    """Up to `per_file` rows of each text."""
    for text in texts:
        lines = text.replace("\r\n", "\n").splitlines(keepends=True)
        for _ in range(min(per_file, len(lines) // 8)):
            if row := _cut(lines, rng):
                yield row


def _cut(lines: list[str], rng: random.Random) -> FimRow | None:
    draw = rng.random()
    text = "".join(lines)
    if draw < 0.65:
        start, end = _line_span(lines, 1, rng)
    elif draw < 0.85:
        start, end = _line_span(lines, rng.randint(2, 6), rng)
    else:
        start = rng.randrange(len(text))
        end = min(len(text), start + rng.randint(4, 240))
    middle = text[start:end]
    if not middle.strip():
        return None
    before = text[max(0, start - rng.randint(300, BEFORE_CHARS)) : start]
    return FimRow(before, middle, text[end : end + rng.randint(0, AFTER_CHARS)])


def _line_span(lines: list[str], count: int, rng: random.Random) -> tuple[int, int]:
    """A span from the start of a line, the end of its indentation or a position inside it, to the end of a line
    without the newline."""
    first = rng.randrange(len(lines))
    start = sum(map(len, lines[:first]))
    line = lines[first].rstrip("\n")
    indent = len(line) - len(line.lstrip())
    end = start + sum(map(len, lines[first : first + count]))
    end -= lines[min(first + count, len(lines)) - 1].endswith("\n")
    inside = indent if rng.random() < 0.5 or len(line) <= indent + 2 else rng.randint(indent, len(line) - 1)
    return start + inside, max(end, start + inside)
