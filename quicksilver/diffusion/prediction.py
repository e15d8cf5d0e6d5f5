"""Predicted outputs: drafts of `verify` that are copied from text which the answer is expected to repeat.

A draft from a prediction needs no draft forward, and it may be longer than a canvas. The position in the prediction is
found again after every commit, so a changed, inserted or removed passage costs only the rounds of that passage. A draft
changes how many tokens a round commits, never which ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Tokens at the end of the answer that must occur in the prediction before it is followed again. Doubled after every
# draft of which fewer tokens than `MIN_ACCEPTED` were accepted: such a draft commits less than a canvas.
MIN_MATCH, MIN_ACCEPTED = 3, 4
# More than this many equal tokens are not compared.
MAX_MATCH = 32
# Length of a draft: doubled after every draft that was accepted as a whole, halved after one that was in part. For a
# file of 300 lines with one changed line, 128 instead of 64 computes up to 4 % more rows in a third fewer rounds.
FIRST_DRAFT, LONGEST_DRAFT = 16, 128


class Prediction:
    """The state of one request. `draft` before a round, `observe` after its verification."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._tokens = np.array(token_ids, dtype=np.int64)
        self._at = 0  # index of the token that is expected next
        self._draft_len, self._min_match = FIRST_DRAFT, MIN_MATCH

    def draft(self, answer: Sequence[int], max_tokens: int) -> list[int]:
        """The tokens that should follow `answer`; empty if its end does not occur in the prediction."""
        at = self._align(answer) if answer else 0
        if at is None:
            return []
        self._at = at
        return self._tokens[at : at + min(self._draft_len, max_tokens)].tolist()

    def observe(self, num_accepted: int, num_drafted: int) -> None:
        self._at += num_accepted
        if num_accepted == num_drafted:
            self._draft_len, self._min_match = min(2 * self._draft_len, LONGEST_DRAFT), MIN_MATCH
        elif num_accepted >= MIN_ACCEPTED:
            self._draft_len, self._min_match = max(self._draft_len // 2, FIRST_DRAFT), MIN_MATCH
        else:
            self._draft_len, self._min_match = FIRST_DRAFT, min(2 * self._min_match, MAX_MATCH)

    def _align(self, answer: Sequence[int]) -> int | None:
        """The index after the longest match of the end of `answer`; of equal matches the nearest to the last place,
        where a step back counts twice."""
        ends = np.flatnonzero(self._tokens == answer[-1]) + 1
        num_equal = 1 if len(ends) else 0
        for token in reversed(answer[-MAX_MATCH:-1]):
            longer = ends[(ends > num_equal) & (self._tokens[ends - 1 - num_equal] == token)]
            if not len(longer):
                break
            ends, num_equal = longer, num_equal + 1
        if num_equal < min(self._min_match, len(answer)):
            return None
        steps = ends - self._at
        return int(ends[np.where(steps < 0, -2 * steps, steps).argmin()])
