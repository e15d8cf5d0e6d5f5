"""Keeps enough tokens for a valid end of the text within `max_tokens`.

A second automaton over single bytes finds a short completion once few tokens are left. While a completion fits, no
token is accepted after which it would no longer fit; when only the completion fits, `closing` returns it.
"""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLMatcher

from quicksilver.constrain.runtime.tokens import Tokens
from quicksilver.constrain.shortest import TooCostly, shortest

# Below this number of remaining tokens every step is checked.
NEAR = 192
# Spare tokens: forced text may tokenise longer than the shortest completion assumed.
SLACK = 3
# Tokens that must be left beyond the last completion found, if it is to be used again instead of a search.
COMFORT = 16
# Tokens between two searches while none succeeds, as in free text that only a tag can end.
REST = 16


def slack_of(path: Sequence[int]) -> int:
    """Spare tokens for a completion. After the last value there are none: the rest has one tokenisation."""
    return min(SLACK, max(0, len(path) - 2))


class CompletionBudget:
    """The completion of one constraint. The number of remaining tokens is unknown until the first call of `closing`."""

    def __init__(self, tokens: Tokens, matcher: LLMatcher, words: Sequence[bytes] = ()) -> None:
        self._tokens = tokens
        self._matcher = matcher
        # Literal words of the grammar's patterns, as hints for the search.
        self._words = words
        # Tokens that the byte automaton has not consumed yet.
        self._unread: list[int] = []
        self._room: int | None = None
        self._is_due = False
        self._path: list[int] | None = None
        self._has_path = False
        self._is_off = False
        # Tokens to wait after a search that found nothing.
        self._num_resting = 0
        # The last completion that a search found, in the alphabet and in tokens.
        self._known: tuple[list[int], list[int]] | None = None
        # Tokens that were found affordable, and the completion after them.
        self._foreseen: tuple[list[int], list[int]] = ([], [])

    def copy(self) -> CompletionBudget:
        twin = CompletionBudget(self._tokens, self._matcher.deep_copy(), self._words)
        twin._unread, twin._room = list(self._unread), self._room
        twin._is_due, twin._is_off, twin._num_resting = self._is_due, self._is_off, self._num_resting
        twin._known = self._known
        return twin

    def advance(self, token_id: int) -> None:
        self._unread.append(token_id)
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
        """Tokens that complete the text, if they must start now to fit into `room` tokens."""
        self._room = room
        if room > NEAR:
            return None
        path = self._completion()
        if path is None:
            return None
        # A token shortens the completion by at most one, so a completion that does not fit now never will.
        self._is_off = len(path) > room
        return path if not self._is_off and (self._is_due or len(path) == room) else None

    def affordable(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` may be accepted so that a completion still fits after them."""
        if self._room is None or self._room - len(tokens) > NEAR or not tokens:
            return len(tokens)
        if self._known is not None and len(tokens) + len(self._known[1]) + COMFORT <= self._room:
            # Most tokens continue a value, and what completed the text before still completes it.
            self._catch_up()
            ahead = self._matcher.deep_copy()
            if self._feed(ahead, tokens) and self._keep_known(ahead, tokens):
                self._foreseen = (list(tokens), self._known[1])
                return len(tokens)
        for num_taken in range(len(tokens), 0, -1):
            rest = self._completion_after(tokens[:num_taken])
            if rest is not None and num_taken + len(rest) + slack_of(rest) <= self._room:
                self._foreseen = (list(tokens[:num_taken]), rest)
                return num_taken
            if self._is_off or not self._fits():
                return len(tokens)
        self._is_due = True
        return 0

    def _keep_known(self, ahead: LLMatcher, tokens: Sequence[int]) -> bool:
        """Whether what is left of the last completion after `tokens`, or else all of it, completes the text of `ahead`,
        which has taken them. If so, it is the last completion from now on."""
        assert self._known is not None
        path, joined = self._known
        spelled = [i for token_id in tokens for i in self._tokens.spell(token_id) or (-1,)]
        if path[: len(spelled)] == spelled:
            rest = path[len(spelled) :]
            rest_joined = self._tokens.join(rest)
            if len(rest_joined) <= len(joined) and _completes(ahead, rest):
                self._known = (rest, rest_joined)
                return True
        return _completes(ahead, path)

    def _fits(self) -> bool:
        """Whether a completion from here fits. If none does, no token is refused."""
        path = self._completion()
        return path is not None and self._room is not None and len(path) <= self._room

    def _completion(self) -> list[int] | None:
        if not self._has_path:
            self._catch_up()
            self._path = self._find(self._matcher)
            self._has_path = True
        return self._path

    def _completion_after(self, tokens: Sequence[int]) -> list[int] | None:
        self._catch_up()
        ahead = self._matcher.deep_copy()
        return self._find(ahead) if self._feed(ahead, tokens) else None

    def _find(self, matcher: LLMatcher) -> list[int] | None:
        """A completion in tokens. A grammar whose search is too slow is not searched again."""
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
        joined = self._tokens.join(path)
        if self._known is not None and len(self._known[1]) < len(joined) and _completes(matcher, self._known[0]):
            return self._known[1]
        self._known = (path, joined)
        return joined

    def _catch_up(self) -> None:
        self._feed(self._matcher, self._unread)
        self._unread.clear()

    def _feed(self, matcher: LLMatcher, tokens: Sequence[int]) -> bool:
        """Whether the byte automaton accepted the tokens. If not, it is in error and has no completion."""
        for token_id in tokens:
            spelled = self._tokens.spell(token_id)
            if spelled is None or not matcher.consume_tokens(spelled):
                return False
        return True


def _completes(matcher: LLMatcher, path: list[int]) -> bool:
    """Whether the text is complete after `path`. The matcher is not advanced."""
    after = matcher.deep_copy()
    return (not path or bool(after.consume_tokens(path))) and bool(after.is_accepting())
