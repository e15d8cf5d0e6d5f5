"""Finds where a snippet of code belongs in a file: pairs of equal lines, in order on both sides.

Lines are compared without trailing space. Rare lines decide the place, common ones (braces, blanks) only fill in
between; a place that another part of the file offers just as well is called ambiguous. Pure functions of line lists.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

Pair = tuple[int, int]

_COMMON = 8
"""A line found more often than this in a file does not decide anything."""
_MAX_ANCHORS = 600
_MAX_CELLS = 1 << 20
"""Bounds on work, so that a hostile file costs a fraction of a second."""
_PAIR_SCORE, _MAX_GAP_COST = 4.0, 3.0
_RIVAL = 0.8
"""A second place that scores this share of the best makes the best one ambiguous."""


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
    """The best place for `snippet` in `file[start:]`; None where no telling line of it is found there."""
    anchors = _anchors(snippet, file, start)
    chain, score = _best_chain(anchors)
    if not chain:
        return None
    low, high = chain[0][1], chain[-1][1]
    _, rival = _best_chain([pair for pair in anchors if not low <= pair[1] <= high])
    return Placement(tuple(_fill(chain, snippet, file, start)), is_ambiguous=rival >= _RIVAL * score)


def _anchors(snippet: Sequence[str], file: Sequence[str], start: int) -> list[Pair]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for j in range(start, len(file)):
        found[file[j]].append(j)
    telling = [i for i, line in enumerate(snippet) if _tells(line) and 0 < len(found.get(line, ())) <= _COMMON]
    rarest = sorted(telling, key=lambda i: len(found[snippet[i]]))
    return sorted(islice(((i, j) for i in rarest for j in found[snippet[i]]), _MAX_ANCHORS))


def _tells(line: str) -> bool:
    return len(re.sub(r"\W", "", line)) >= 3


def _best_chain(anchors: Sequence[Pair]) -> tuple[list[Pair], float]:
    """The highest-scoring run of pairs that increases on both sides; distance between pairs costs a little."""
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
    """The chain with equal lines between, before and after its pairs; outward only as far as the snippet reaches."""
    (i_first, j_first), (i_last, j_last) = chain[0], chain[-1]
    low = max(start, j_first - 2 * i_first - 4)
    high = j_last + 2 * (len(snippet) - i_last) + 4
    above = _equal(snippet[:i_first][::-1], file[low:j_first][::-1])
    below = _equal(snippet[i_last + 1 :], file[j_last + 1 : high])
    pairs = [(i_first - 1 - i, j_first - 1 - j) for i, j in reversed(_without_leaps(above))]
    for (i, j), (next_i, next_j) in pairwise(chain):
        between = _equal(snippet[i + 1 : next_i], file[j + 1 : next_j])
        pairs += [(i, j), *((i + 1 + a, j + 1 + b) for a, b in between)]
    return [*pairs, chain[-1], *((i_last + 1 + a, j_last + 1 + b) for a, b in _without_leaps(below))]


def _equal(left: Sequence[str], right: Sequence[str]) -> list[Pair]:
    if len(left) * len(right) > _MAX_CELLS:
        return []
    blocks = difflib.SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
    return [(block.a + n, block.b + n) for block in blocks for n in range(block.size)]


def _without_leaps(pairs: list[Pair]) -> list[Pair]:
    """Pairs beyond the anchors, up to the first that would drop lines of the file."""
    kept: list[Pair] = []
    i, j = -1, -1
    for pair in pairs:
        if pair[1] - j > pair[0] - i:
            break
        kept.append(pair)
        i, j = pair
    return kept
