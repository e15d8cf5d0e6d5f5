"""The differing runs of two lists of lines. The work is bounded for any input.

Equal lines at both ends are matched first, then the lines that occur once on each side, in their longest common order.
`difflib` compares only the short runs between them.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Runs with more cells (old lines times new lines) count as different. A file of repeated lines reaches this limit.
MAX_CELLS = 1 << 20
_Block = tuple[int, int, int]  # start in the old lines, start in the new lines, number of equal lines


@dataclass(frozen=True, slots=True)
class Difference:
    """Old lines `[start, end)` are replaced by new lines `[new_start, new_end)`; either range may be empty."""

    start: int
    end: int
    new_start: int
    new_end: int


def differences(old: Sequence[str], new: Sequence[str]) -> Iterator[Difference]:
    """In order. The lines between two differences are equal."""
    at, new_at = 0, 0
    for start, new_start, size in (*_equal_blocks(old, new), (len(old), len(new), 0)):
        if at < start or new_at < new_start:
            yield Difference(at, start, new_at, new_start)
        at, new_at = start + size, new_start + size


def _equal_blocks(old: Sequence[str], new: Sequence[str]) -> Iterator[_Block]:
    head = _num_equal(old, new)
    tail = _num_equal(old[head:][::-1], new[head:][::-1])
    yield 0, 0, head
    middle, new_middle = old[head : len(old) - tail], new[head : len(new) - tail]
    at, new_at = 0, 0
    for start, new_start in (*_unique_pairs(middle, new_middle), (len(middle), len(new_middle))):
        for i, j, size in _run_blocks(middle[at:start], new_middle[new_at:new_start]):
            yield head + at + i, head + new_at + j, size
        if start < len(middle):
            yield head + start, head + new_start, 1
        at, new_at = start + 1, new_start + 1
    yield len(old) - tail, len(new) - tail, tail


def _num_equal(old: Sequence[str], new: Sequence[str]) -> int:
    """The length of the common beginning."""
    pairs = zip(old, new, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))


def _unique_pairs(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Positions of the lines that occur once on each side: the longest sequence that increases on both sides."""
    counts, new_counts = Counter(old), Counter(new)
    new_at = {line: j for j, line in enumerate(new) if new_counts[line] == 1}
    pairs = [(i, new_at[line]) for i, line in enumerate(old) if counts[line] == 1 and line in new_at]
    # Of each length, the sequence with the smallest last position.
    lasts: list[int] = []
    ends: list[int] = []
    previous: list[int] = []
    for index, (_, j) in enumerate(pairs):
        length = bisect_left(lasts, j)
        previous.append(ends[length - 1] if length else -1)
        lasts[length : length + 1] = [j]
        ends[length : length + 1] = [index]
    chain: list[tuple[int, int]] = []
    at = ends[-1] if ends else -1
    while at >= 0:
        chain.append(pairs[at])
        at = previous[at]
    return chain[::-1]


def _run_blocks(old: Sequence[str], new: Sequence[str]) -> Iterator[_Block]:
    """The equal blocks of two runs without common unique lines."""
    if old == new:
        yield 0, 0, len(old)
    elif 0 < len(old) * len(new) <= MAX_CELLS:
        for block in difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
            yield block.a, block.b, block.size
