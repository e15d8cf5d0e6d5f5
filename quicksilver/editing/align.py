"""Aligns a snippet of code with a file: pairs of equal lines, in the same order on both sides.

Lines are compared without trailing space. Rare lines are anchors that decide the position; common lines (braces,
blanks) are matched between anchors. A position is ambiguous if another part of the file matches almost as well. Pure
functions of line lists.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

Pair = tuple[int, int]

# A line that occurs more often than this in a file is not an anchor.
_MAX_OCCURRENCES = 8
_MAX_ANCHORS = 600
# Limits on the work, so that an adversarial file takes only a fraction of a second.
_MAX_CELLS = 1 << 20
_PAIR_SCORE, _MAX_GAP_COST = 4.0, 3.0
# If the second best position scores at least this share of the best one, the best one is ambiguous.
_AMBIGUOUS_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Placement:
    """Pairs of (snippet line, file line), increasing in both."""

    pairs: tuple[Pair, ...]
    is_ambiguous: bool

    @property
    def first(self) -> Pair:
        return self.pairs[0]

    @property
    def last(self) -> Pair:
        return self.pairs[-1]


def place(snippet: Sequence[str], file: Sequence[str], start: int) -> Placement | None:
    """The best position of `snippet` in `file[start:]`; None if none of its distinctive lines occurs there."""
    anchors = _anchors(snippet, file, start)
    chain, score = _best_chain(anchors)
    if not chain:
        return None
    low, high = chain[0][1], chain[-1][1]
    _, second = _best_chain([pair for pair in anchors if not low <= pair[1] <= high])
    return Placement(tuple(_fill(chain, snippet, file, start)), is_ambiguous=second >= _AMBIGUOUS_SHARE * score)


def _anchors(snippet: Sequence[str], file: Sequence[str], start: int) -> list[Pair]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for j in range(start, len(file)):
        found[file[j]].append(j)
    counts = [len(found.get(line, ())) for line in snippet]
    rare = [i for i, line in enumerate(snippet) if is_distinctive(line) and 0 < counts[i] <= _MAX_OCCURRENCES]
    rarest = sorted(rare, key=counts.__getitem__)
    return sorted(islice(((i, j) for i in rarest for j in found[snippet[i]]), _MAX_ANCHORS))


def is_distinctive(line: str) -> bool:
    """Whether the line has words, unlike a brace or a blank."""
    return len(re.sub(r"\W", "", line)) >= 3


def _best_chain(anchors: Sequence[Pair]) -> tuple[list[Pair], float]:
    """The highest-scoring sequence of pairs that increases on both sides; gaps between pairs reduce the score."""
    scores: list[float] = []
    previous: list[int] = []
    for k, (i, j) in enumerate(anchors):
        best, parent = 0.0, -1
        for p in range(k):
            if anchors[p][0] < i and anchors[p][1] < j:
                gap = i - anchors[p][0] + j - anchors[p][1] - 2
                value = scores[p] - min(gap / 4, _MAX_GAP_COST)
                if value > best:
                    best, parent = value, p
        scores.append(best + _PAIR_SCORE)
        previous.append(parent)
    if not scores:
        return [], 0.0
    at = max(range(len(scores)), key=scores.__getitem__)
    return _walk_back(anchors, previous, at), scores[at]


def _walk_back(anchors: Sequence[Pair], previous: Sequence[int], at: int) -> list[Pair]:
    chain: list[Pair] = []
    while at >= 0:
        chain.append(anchors[at])
        at = previous[at]
    return chain[::-1]


def _fill(chain: list[Pair], snippet: Sequence[str], file: Sequence[str], start: int) -> list[Pair]:
    """The chain with the equal lines between, before and after its pairs, within the length of the snippet."""
    (i_first, j_first), (i_last, j_last) = chain[0], chain[-1]
    low = max(start, j_first - 2 * i_first - 4)
    high = j_last + 2 * (len(snippet) - i_last) + 4
    above = _equal(snippet[:i_first][::-1], file[low:j_first][::-1])
    below = _equal(snippet[i_last + 1 :], file[j_last + 1 : high])
    pairs = [(i_first - 1 - i, j_first - 1 - j) for i, j in reversed(_without_gaps(above))]
    for (i, j), (next_i, next_j) in pairwise(chain):
        between = _equal(snippet[i + 1 : next_i], file[j + 1 : next_j])
        pairs += [(i, j), *((i + 1 + a, j + 1 + b) for a, b in between)]
    return [*pairs, chain[-1], *((i_last + 1 + a, j_last + 1 + b) for a, b in _without_gaps(below))]


def _equal(left: Sequence[str], right: Sequence[str]) -> list[Pair]:
    if len(left) * len(right) > _MAX_CELLS:
        return []
    blocks = difflib.SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
    return [(block.a + n, block.b + n) for block in blocks for n in range(block.size)]


def _without_gaps(pairs: list[Pair]) -> list[Pair]:
    """Pairs outside the anchors, up to the first that would skip lines of the file."""
    kept: list[Pair] = []
    i, j = -1, -1
    for pair in pairs:
        if pair[1] - j > pair[0] - i:
            break
        kept.append(pair)
        i, j = pair
    return kept
