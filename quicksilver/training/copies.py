"""Which tokens of a rewritten region decide the edit, and which only repeat the region.

Standard library only. A copied token is nearly certain once the edit is known, so it teaches little; what counts is
where the text departs from the region, where it comes back to it, and, in a region that stays, every line's start.
"""

from __future__ import annotations

import difflib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


def deciding_tokens(region: str, answer: str, token_lens: Sequence[int]) -> list[bool]:
    """For each token of the answer, given by its length in bytes: whether it is a decision. Tokens past its end are."""
    lines = answer.split("\n")
    is_new, comes_back = _line_marks(region.split("\n"), lines)
    starts = [0, *accumulate(len(line.encode()) + 1 for line in lines[:-1])]
    num_bytes = len(answer.encode())
    decides, at, last_line = [], 0, -1
    for length in token_lens:
        line, reached = bisect_right(starts, at) - 1, bisect_right(starts, at + length) - 1
        is_first = line != last_line
        # A line break before a new line decides too: the text could have ended there.
        decides.append(at >= num_bytes or is_new[line] or is_new[reached] or (is_first and comes_back[line]))
        at, last_line = at + length, line
    return decides


def _line_marks(old: list[str], new: list[str]) -> tuple[list[bool], list[bool]]:
    """Per new line: whether it is not a copy, and whether its first token decides although it is one."""
    if old == new:
        return [False] * len(new), [True] * len(new)
    is_new, comes_back = [False] * len(new), [False] * len(new)
    is_after_change = False
    for tag, _, _, start, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            comes_back[start] = is_after_change
        else:
            is_new[start:end] = [True] * (end - start)
        is_after_change = tag != "equal"
    return is_new, comes_back
