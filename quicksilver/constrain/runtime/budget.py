"""Room for the end: how long a completion would be, and when it has to start so that `max_tokens` leaves valid text.

Walks a second automaton over single bytes, a token behind the first, and only when the end is near. While a completion
fits, no token is accepted after which it would not; when nothing else fits any more, the completion is due.
"""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLMatcher

from quicksilver.constrain.runtime.tokens import Tokens
from quicksilver.constrain.shortest import TooCostly, shortest

NEAR = 192
"""Tokens of room below which every step is checked against the budget."""
SLACK = 3
"""Tokens kept beyond a way out: certain text that is written before it cuts its words elsewhere."""
REST = 16
"""Tokens between searches while none succeeds, as in free text that only a tag can end."""


def slack_of(path: Sequence[int]) -> int:
    """None behind the last value: what is left there has one cut."""
    return min(SLACK, max(0, len(path) - 2))


class Budget:
    """The length of the way out, for one constraint. `room` is unknown until `closing` has been asked."""

    def __init__(self, tokens: Tokens, matcher: LLMatcher, words: Sequence[bytes] = ()) -> None:
        self._tokens = tokens
        self._matcher = matcher
        self._words = words
        """Of the grammar's patterns."""
        self._behind: list[int] = []
        self._room: int | None = None
        self._is_due = False
        self._path: list[int] | None = None
        self._has_path = False
        self._is_off = False
        self._num_resting = 0
        """Tokens to wait after a search that found nothing, since the next would hardly find more."""
        self._foreseen: tuple[list[int], list[int]] = ([], [])
        """Tokens that were judged affordable, and the way out behind them."""

    def copy(self) -> Budget:
        twin = Budget(self._tokens, self._matcher.deep_copy(), self._words)
        twin._behind, twin._room = list(self._behind), self._room
        twin._is_due, twin._is_off, twin._num_resting = self._is_due, self._is_off, self._num_resting
        return twin

    def advance(self, token_id: int) -> None:
        self._behind.append(token_id)
        self._has_path = self._is_due = False
        self._num_resting = max(0, self._num_resting - 1)
        if self._room is not None:
            self._room -= 1
        expected, path = self._foreseen
        if expected[:1] == [token_id]:
            del expected[0]
            if not expected:
                self._path, self._has_path = path, True
        else:
            self._foreseen = ([], [])

    def closing(self, room: int) -> list[int] | None:
        """Tokens that complete the text, when they must come now to fit into `room`."""
        self._room = room
        if room > NEAR:
            return None
        path = self._way_out()
        if path is None:
            return None
        # Each token brings the end at most one token nearer, so what does not fit now never will.
        self._is_off = len(path) > room
        return path if not self._is_off and (self._is_due or len(path) == room) else None

    def affordable(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` may be accepted so that a completion still fits behind them."""
        if self._room is None or self._room - len(tokens) > NEAR or not tokens:
            return len(tokens)
        for num_taken in range(len(tokens), 0, -1):
            rest = self._way_out_after(tokens[:num_taken])
            if rest is not None and num_taken + len(rest) + slack_of(rest) <= self._room:
                self._foreseen = (list(tokens[:num_taken]), rest)
                return num_taken
            if self._is_off or not self._fits():
                return len(tokens)
        self._is_due = True
        return 0

    def _fits(self) -> bool:
        """Whether a completion from here fits at all; if none does, there is nothing to save."""
        path = self._way_out()
        return path is not None and self._room is not None and len(path) <= self._room

    def _way_out(self) -> list[int] | None:
        if not self._has_path:
            self._catch_up()
            self._path = self._find(self._matcher)
            self._has_path = True
        return self._path

    def _way_out_after(self, tokens: Sequence[int]) -> list[int] | None:
        self._catch_up()
        ahead = self._matcher.deep_copy()
        return self._find(ahead) if self._feed(ahead, tokens) else None

    def _find(self, matcher: LLMatcher) -> list[int] | None:
        """A way out in tokens. A grammar that is too slow to ask is not asked again."""
        if self._is_off or self._num_resting:
            return None
        try:
            path = shortest(matcher, self._tokens.alphabet, self._words)
        except TooCostly:
            self._is_off = True
            return None
        if path is None:
            self._num_resting = REST
            return None
        return self._tokens.join(path)

    def _catch_up(self) -> None:
        self._feed(self._matcher, self._behind)
        self._behind.clear()

    def _feed(self, matcher: LLMatcher, tokens: Sequence[int]) -> bool:
        """Whether the byte automaton could follow; where it could not, it is in error and finds no way out."""
        for token_id in tokens:
            spelled = self._tokens.spell(token_id)
            if spelled is None or not matcher.consume_tokens(spelled):
                return False
        return True
