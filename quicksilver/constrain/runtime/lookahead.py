"""Lookahead along tokens that are not committed: masks, forced tokens, and the longest legal prefix.

A lookahead advances the automaton that it is given and must end with `go_back`, which rolls it back. Its own state is
the last bytes of the text, for the limit on the digits of a number, and the rest of the forced run at the current
position.
"""

from __future__ import annotations

import numpy as np
from llguidance import LLMatcher

from quicksilver.constrain.runtime.digits import Bits
from quicksilver.constrain.runtime.forced_text import forced_tokens
from quicksilver.constrain.runtime.tokens import Tokens


class Lookahead:
    """`due` is the rest of the forced run at the start: empty if nothing is forced, None if it is not known yet."""

    def __init__(self, tokens: Tokens, matcher: LLMatcher, tail: bytes, due: list[int] | None) -> None:
        self._tokens = tokens
        self.matcher = matcher
        self.tail = tail
        self.due = due
        self.num_taken = 0

    def forced(self) -> list[int]:
        """The rest of the forced run, in the tokenisation with which it began."""
        if self.due is None:
            self.due = [] if self.matcher.is_stopped() else forced_tokens(self.matcher, self._tokens)
        return self.due

    def take(self, token_id: int) -> bool:
        """Consumes a token if it is allowed and is not a different tokenisation of forced text."""
        due = self.forced()
        return (not due or due[0] == token_id) and self.follow(token_id)

    def follow(self, token_id: int) -> bool:
        """Consumes a token if it is allowed. Stop tokens are not."""
        if token_id in self._tokens.eos_ids or not self._consume(token_id):
            return False
        self.note(token_id)
        self.num_taken += 1
        return True

    def note(self, token_id: int) -> None:
        """Updates the state after the automaton has consumed a token."""
        self.tail = self._tokens.extend(self.tail, token_id)
        self.due = self.due[1:] or None if self.due and self.due[0] == token_id else None

    def consume_forced(self) -> list[int]:
        """Consumes and returns tokens while the text is forced."""
        passed: list[int] = []
        while due := self.forced():
            for token_id in due:
                if not self.follow(token_id):
                    return passed
                passed.append(token_id)
        return passed

    def write(self, row: Bits) -> None:
        """Writes the bitmask of the current position."""
        if not self.write_forced(row):
            self._tokens.write_allowed(self.matcher, row)
            self.keep_short(row)

    def write_forced(self, row: Bits) -> bool:
        """Writes the bitmask of the current position if one token must follow; whether that is so."""
        due = self.forced()
        if due:
            row[:] = 0
            row[due[0] >> 5] = np.uint32(1 << (due[0] & 31)).view(np.int32)
        return bool(due)

    def go_back(self) -> None:
        self.matcher.rollback(self.num_taken)
        self.num_taken = 0

    def _consume(self, token_id: int) -> bool:
        """Consumes the token if the grammar and the limit on numbers allow it."""
        if not 0 <= token_id < self._tokens.vocab_size or self._is_overlong(token_id):
            return False
        return bool(self.matcher.try_consume_tokens([token_id]) == 1)

    def _is_overlong(self, token_id: int) -> bool:
        if not self._tokens.guard.exceeds(self.tail, token_id):
            return False
        row = self._tokens.allowed_bits(self.matcher)
        self.keep_short(row)
        return not row[token_id >> 5] >> (token_id & 31) & 1

    def keep_short(self, row: Bits) -> None:
        """Removes tokens that would make a number too long, unless no other token is allowed."""
        banned = self._tokens.guard.too_long(self.tail)
        if banned is None or self._tokens.allows_letter(row):
            return
        kept = row & ~banned
        if kept.any():
            row[:] = kept
