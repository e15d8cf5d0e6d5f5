"""A look ahead along tokens that are not committed: what each place allows, what is certain there, how far it goes.

A walk moves the automaton it is given and `go_back` undoes that; every walk must end with it. The state of a walk is
small on purpose: the last bytes, for the guard on numbers, and the rest of a certain run that was entered.
"""

from __future__ import annotations

import numpy as np
from llguidance import LLMatcher

from quicksilver.constrain.runtime.digits import Bits
from quicksilver.constrain.runtime.forced_text import determined
from quicksilver.constrain.runtime.tokens import Tokens


class Lookahead:
    """`due` is the rest of a certain run at the start: empty where nothing is certain, None where nobody has asked."""

    def __init__(self, tokens: Tokens, matcher: LLMatcher, tail: bytes, due: list[int] | None) -> None:
        self._tokens = tokens
        self._matcher = matcher
        self.tail = tail
        self.due = due
        self.num_taken = 0

    def certain(self) -> list[int]:
        """The certain run from here, spelled as it was when it began."""
        if self.due is None:
            self.due = [] if self._matcher.is_stopped() else determined(self._matcher, self._tokens)
        return self.due

    def take(self, token_id: int) -> bool:
        """Goes on behind a token, if it is lawful and no other spelling of certain text."""
        due = self.certain()
        return (not due or due[0] == token_id) and self.follow(token_id)

    def follow(self, token_id: int) -> bool:
        """Goes on behind a token, if it is lawful; a stop token is not."""
        if token_id in self._tokens.eos_ids or not self._is_lawful(token_id):
            return False
        self.pass_by(token_id)
        self.num_taken += 1
        return True

    def pass_by(self, token_id: int) -> None:
        """Notes a token that the automaton has taken."""
        self.tail = self._tokens.extend(self.tail, token_id)
        self.due = self.due[1:] or None if self.due and self.due[0] == token_id else None

    def run_on(self) -> list[int]:
        """Goes on as long as the text is certain; the tokens of that."""
        passed: list[int] = []
        while due := self.certain():
            for token_id in due:
                if not self.follow(token_id):
                    return passed
                passed.append(token_id)
        return passed

    def write(self, row: Bits) -> None:
        """The bitmask of this place."""
        due = self.certain()
        if due:
            row[:] = 0
            row[due[0] >> 5] = np.uint32(1 << (due[0] & 31)).view(np.int32)
            return
        row[:] = self._tokens.lawful_bits(self._matcher)
        self._keep_short(row)

    def go_back(self) -> None:
        self._matcher.rollback(self.num_taken)
        self.num_taken = 0

    def _is_lawful(self, token_id: int) -> bool:
        """Consumes the token if grammar and guard allow it."""
        if not 0 <= token_id < self._tokens.vocab_size or self._is_overlong(token_id):
            return False
        return bool(self._matcher.try_consume_tokens([token_id]) == 1)

    def _is_overlong(self, token_id: int) -> bool:
        if not self._tokens.guard.exceeds(self.tail, token_id):
            return False
        row = self._tokens.lawful_bits(self._matcher)
        self._keep_short(row)
        return not row[token_id >> 5] >> (token_id & 31) & 1

    def _keep_short(self, row: Bits) -> None:
        """Takes out tokens that would make a number too long, unless nothing else is lawful."""
        banned = self._tokens.guard.too_long(self.tail)
        if banned is None or self._tokens.allows_letter(row):
            return
        kept = row & ~banned
        if kept.any():
            row[:] = kept
