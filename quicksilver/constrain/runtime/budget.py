"""Keeps enough tokens for a valid end of the text within `max_tokens`.

A second automaton over single bytes finds a short completion once few tokens are left. While a completion fits, no
token is accepted after which it would no longer fit; when only the completion fits, `closing` returns it.
"""

from __future__ import annotations

from collections.abc import Sequence

from quicksilver.constrain.runtime.tokens import Tokens
from quicksilver.constrain.runtime.unique import Matcher
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


class Completion:
    """Tokens that complete a text, in the alphabet of bytes and joined into tokens of the vocabulary."""

    __slots__ = ("_joined", "_tokens", "path")

    def __init__(self, tokens: Tokens, path: list[int]) -> None:
        self._tokens, self.path = tokens, path
        self._joined: list[int] | None = None

    @property
    def joined(self) -> list[int]:
        if self._joined is None:
            self._joined = self._tokens.join(self.path)
        return self._joined

    def fits(self, room: int) -> bool:
        """Whether it has at most `room` tokens."""
        return len(self.path) <= room or len(self.joined) <= room

    def after(self, spelled: Sequence[int]) -> Completion | None:
        """The rest of it, if it begins with `spelled`."""
        count = len(spelled)
        return Completion(self._tokens, self.path[count:]) if self.path[:count] == spelled else None


class CompletionBudget:
    """The completion of one constraint. The number of remaining tokens is unknown until the first call of `closing`."""

    def __init__(self, tokens: Tokens, matcher: Matcher, words: Sequence[bytes] = ()) -> None:
        self._tokens = tokens
        self._matcher = matcher
        # Literal words of the grammar's patterns, as hints for the search.
        self._words = words
        # Tokens that the byte automaton has not consumed yet.
        self._unread: list[int] = []
        self._room: int | None = None
        self._is_due = False
        # The completion to start when it is due, if `_has_path`; None if none was found.
        self._path: Completion | None = None
        self._has_path = False
        self._is_off = False
        # Tokens to wait after a search that found nothing.
        self._num_resting = 0
        # The last completion that a search found, or what the text has left of it; and whether it is known to complete
        # the text as it is now.
        self._known: Completion | None = None
        self._is_known_valid = False
        # Tokens that were found affordable, and the completion after them.
        self._foreseen: tuple[list[int], Completion | None] = ([], None)

    def copy(self) -> CompletionBudget:
        twin = CompletionBudget(self._tokens, self._matcher.deep_copy(), self._words)
        twin._unread, twin._room = list(self._unread), self._room
        twin._is_due, twin._is_off, twin._num_resting = self._is_due, self._is_off, self._num_resting
        twin._known, twin._is_known_valid = self._known, self._is_known_valid
        return twin

    def advance(self, tokens: Sequence[int]) -> None:
        self._unread += tokens
        self._has_path = self._is_due = False
        self._num_resting = max(0, self._num_resting - len(tokens))
        if self._room is not None:
            self._room -= len(tokens)
        (expected, path), self._foreseen = self._foreseen, ([], None)
        rest = tokens
        if expected and list(tokens[: len(expected)]) == expected:
            rest = tokens[len(expected) :]
            self._path, self._has_path = path, not rest
            self._known, self._is_known_valid = path, path is not None
        if self._is_known_valid:
            self._pass_known(rest)

    def closing(self, room: int) -> list[int] | None:
        """Tokens that complete the text, if they must start now to fit into `room` tokens."""
        self._room = room
        if room > NEAR or (not self._has_path and not self._is_due and self._continue_known([]) is not None):
            return None
        path = self._completion()
        if path is None:
            return None
        # A token shortens the completion by at most one, so a completion that does not fit now never will.
        self._is_off = len(path.joined) > room
        return path.joined if not self._is_off and (self._is_due or len(path.joined) == room) else None

    def affordable(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` may be accepted so that a completion still fits after them."""
        if self._room is None or self._room - len(tokens) > NEAR or not tokens:
            return len(tokens)
        if (rest := self._continue_known(tokens)) is not None:
            self._foreseen = (list(tokens), rest)
            return len(tokens)
        for num_taken in range(len(tokens), 0, -1):
            rest = self._completion_after(tokens[:num_taken])
            if rest is not None and num_taken + len(rest.joined) + slack_of(rest.joined) <= self._room:
                self._foreseen = (list(tokens[:num_taken]), rest)
                return num_taken
            if self._is_off or not self._fits():
                return len(tokens)
        self._is_due = True
        return 0

    def _continue_known(self, tokens: Sequence[int]) -> Completion | None:
        """What completes the text after `tokens` with room to spare, without a search: what they leave of the last
        completion, or all of it. Most tokens continue a value, and what completed the text before still does."""
        known, room = self._known, self._room
        spelled = self._spell(tokens)
        if known is None or room is None or spelled is None:
            return None
        spare = room - len(tokens) - COMFORT
        if self._is_known_valid and (rest := known.after(spelled)) is not None and rest.fits(spare):
            return rest
        if not known.fits(spare):
            return None
        self._catch_up()
        if not self._completes(self._matcher, [*spelled, *known.path]):
            return None
        self._is_known_valid |= not tokens
        return known

    def _pass_known(self, tokens: Sequence[int]) -> None:
        """Removes committed tokens from the last completion, if it begins with them."""
        spelled = self._spell(tokens)
        rest = self._known.after(spelled) if self._known is not None and spelled is not None else None
        self._known, self._is_known_valid = rest or self._known, rest is not None

    def _fits(self) -> bool:
        """Whether a completion from here fits. If none does, no token is refused."""
        path = self._completion()
        return path is not None and self._room is not None and len(path.joined) <= self._room

    def _completion(self) -> Completion | None:
        if not self._has_path:
            self._catch_up()
            self._path = self._find(self._matcher)
            self._has_path = True
            if self._path is not None:
                self._known, self._is_known_valid = self._path, True
        return self._path

    def _completion_after(self, tokens: Sequence[int]) -> Completion | None:
        self._catch_up()
        ahead = self._matcher.deep_copy()
        return self._find(ahead) if self._feed(ahead, tokens) else None

    def _find(self, matcher: Matcher) -> Completion | None:
        """The shorter one of a completion that a search finds and the last one. A grammar whose search is too slow is
        not searched again."""
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
        found, known = Completion(self._tokens, path), self._known
        if known is not None and len(known.joined) < len(found.joined) and self._completes(matcher, known.path):
            return known
        return found

    def _completes(self, matcher: Matcher, path: list[int]) -> bool:
        """Whether the text is complete after `path`."""
        return matcher.validate_tokens([*path, self._tokens.alphabet.end_id]) > len(path)

    def _catch_up(self) -> None:
        if self._unread:
            self._feed(self._matcher, self._unread)
            self._unread.clear()

    def _feed(self, matcher: Matcher, tokens: Sequence[int]) -> bool:
        """Whether the byte automaton accepted the tokens. If not, it is in error and has no completion."""
        spelled = self._spell(tokens)
        return spelled is not None and bool(matcher.consume_tokens(spelled))

    def _spell(self, tokens: Sequence[int]) -> list[int] | None:
        """The tokens in the alphabet of bytes; None if one has a byte without an id."""
        spelled: list[int] = []
        for token_id in tokens:
            one = self._tokens.spell(token_id)
            if one is None:
                return None
            spelled += one
        return spelled
