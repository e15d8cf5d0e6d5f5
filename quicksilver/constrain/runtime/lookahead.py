"""The automaton of one request, and the tokens after the committed text that it was asked about.

Masks, forced tokens and legal prefixes are questions about tokens ahead, and a commit usually takes tokens that were
asked about before. So the accepted tokens stay on a path, with what is known about each of its positions, and the
automaton moves along the path only where its state is needed. Position 0 is the committed text, position i follows the
first i tokens of the path.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quicksilver.constrain.runtime.digits import Bits
from quicksilver.constrain.runtime.forced_text import forced_run
from quicksilver.constrain.runtime.tokens import Tokens
from quicksilver.constrain.runtime.unique import Matcher


class Lookahead:
    """What is known about a position depends on the text before it only, not on the questions asked before."""

    __slots__ = ("_at", "_boundary", "_path", "_runs", "_tails", "_tokens", "matcher")

    def __init__(self, tokens: Tokens, matcher: Matcher) -> None:
        self._tokens = tokens
        self.matcher = matcher
        # Position of the automaton.
        self._at = 0
        self._path: list[int] = []
        # By position: the last bytes of the text, for the limit on the digits of a number; and the rest of the forced
        # run, which is empty if nothing is forced, and None if it is not known yet.
        self._tails: list[bytes] = [b""]
        self._runs: list[list[int] | None] = [None]
        # A forced run whose end was searched: its position, its tokens, and what the automaton allows after them.
        self._boundary: tuple[int, list[int], Bits] | None = None

    def copy(self) -> Lookahead:
        twin = Lookahead(self._tokens, self.matcher.deep_copy())
        twin._at, twin._path = self._at, list(self._path)
        twin._tails, twin._runs, twin._boundary = list(self._tails), list(self._runs), self._boundary
        return twin

    def reach(self, tokens: Sequence[int], start: int = 0) -> int:
        """The position after those of `tokens` that are allowed in this order from a position on. The path continues
        with them from now on. Stop tokens are not allowed."""
        position = start
        for token_id, known in zip(tokens, self._path[start:], strict=False):
            if token_id != known:
                break
            position += 1
        num_known = position - start
        return position if num_known == len(tokens) else self._follow(position, tokens[num_known:])

    def may_end(self, position: int) -> bool:
        """Whether the text is complete at a position of the path."""
        self.move(position)
        return bool(self.matcher.is_accepting())

    def run(self, position: int) -> list[int]:
        """The rest of the forced run at a position, in the tokenisation with which it began."""
        run = self._runs[position]
        if run is not None:
            return run
        start = position
        while start > 0 and self._runs[start - 1] is None:
            start -= 1
        for i in range(start, position + 1):
            run = self._continued_run(i)
            self._runs[i] = run = self._find_run(i) if run is None else run
        assert run is not None
        return run

    def _find_run(self, position: int) -> list[int]:
        self.move(position)
        if self.matcher.is_stopped():
            return []
        found = forced_run(self.matcher, self._tokens)
        if found.bits_after is not None:
            self._boundary = (position, found.tokens, found.bits_after)
        return found.tokens

    def _continued_run(self, position: int) -> list[int] | None:
        """The rest of the run to which the token before a position belongs; None if there is no rest."""
        before = self._runs[position - 1] if position else None
        if not before or before[0] != self._path[position - 1]:
            return None
        return before[1:] or None

    def forced(self, position: int) -> list[int]:
        """The forced tokens from a position on, until the text is free. They continue the path."""
        end = position
        while run := self.run(end):
            start, end = end, self.reach(run, end)
            if end < start + len(run):
                break
        return self._path[position:end]

    def commit(self, tokens: Sequence[int]) -> int:
        """Moves position 0 behind `tokens`. Returns how many of them the automaton accepts; if not all, it has failed.
        The limit on numbers does not apply."""
        end = self.reach(tokens)
        while end < len(tokens):
            self.move(end)
            if not self.matcher.consume_token(tokens[end]):
                return end
            self._cut(end)
            self._path.append(tokens[end])
            self._tails.append(self._tokens.extend(self._tails[-1], tokens[end]))
            self._runs.append(None)
            self._at += 1
            end = self.reach(tokens[end + 1 :], end + 1)
        self.run(end)
        self.move(max(self._at, end))
        self._at -= end
        self._boundary = self._boundary_after(end)
        del self._path[:end], self._tails[:end], self._runs[:end]
        return end

    def write(self, ahead: Sequence[int], rows: Bits) -> int:
        """Writes the bitmasks of the positions along `ahead`, up to its first illegal token. Returns how many."""
        for position, row in enumerate(rows):
            if not self.write_known(position, row):
                self._tokens.write_allowed(self.matcher, row)
                self.keep_short(position, row)
            if not self.goes_on(position, ahead):
                return position + 1
        return len(rows)

    def write_known(self, position: int, row: Bits) -> bool:
        """Writes the bitmask of a position if it is known, and moves the automaton there if not. Returns whether it is
        known."""
        if run := self.run(position):
            write_only(run[0], row)
        elif self._boundary is not None and self._is_after_boundary(self._boundary, position):
            row[:] = self._boundary[2]
            self.keep_short(position, row)
        else:
            self.move(position)
            return False
        return True

    def goes_on(self, position: int, ahead: Sequence[int]) -> bool:
        """Whether the token of `ahead` at a position is allowed, and no different tokenisation of forced text. The path
        continues with it then."""
        if position >= len(ahead):
            return False
        run, token_id = self._runs[position], ahead[position]
        if run and run[0] != token_id:
            return False
        is_known = position < len(self._path) and self._path[position] == token_id
        return is_known or self._follow(position, (token_id,)) > position

    def _is_after_boundary(self, boundary: tuple[int, list[int], Bits], position: int) -> bool:
        """Whether a position is the end of the run at a boundary."""
        first, run, _ = boundary
        return first + len(run) == position and self._path[first:position] == run

    def _boundary_after(self, end: int) -> tuple[int, list[int], Bits] | None:
        """The boundary, if it still is ahead once the path up to `end` is committed."""
        if self._boundary is None:
            return None
        first, run, bits = self._boundary
        num_passed = max(end - first, 0)
        if self._path[first:end] != run[:num_passed]:
            return None
        return max(first - end, 0), run[num_passed:], bits

    def move(self, position: int) -> None:
        """Moves the automaton to a position of the path."""
        if position == self._at:
            return
        if position < self._at:
            self.matcher.rollback(self._at - position)
        else:
            self.matcher.try_consume_tokens(self._path[self._at : position])
        self._at = position

    def _follow(self, start: int, tokens: Sequence[int]) -> int:
        """As `reach`, for tokens of which the first one does not continue the path."""
        guard, allowed, tails = self._tokens.guard, list[int](), [self._tails[start]]
        for token_id in tokens:
            if token_id in self._tokens.eos_ids or not 0 <= token_id < self._tokens.vocab_size:
                break
            if guard.exceeds(tails[-1], token_id):
                position = start + len(allowed)
                if self._consume(start, allowed, tails[1:]) < position or self._is_overlong(position, token_id):
                    return self._at
                start, allowed, tails = position, [], tails[-1:]
            allowed.append(token_id)
            tails.append(self._tokens.extend(tails[-1], token_id))
        return self._consume(start, allowed, tails[1:]) if allowed else start

    def _consume(self, start: int, tokens: list[int], tails: list[bytes]) -> int:
        """Consumes tokens while the grammar allows them; `tails` are the last bytes after each. Returns the position
        after them."""
        self.move(start)
        num_taken = self.matcher.try_consume_tokens(tokens) if tokens else 0
        if num_taken:
            self._cut(start)
            self._path += tokens[:num_taken]
            self._tails += tails[:num_taken]
            self._runs += [None] * num_taken
            self._at = start + num_taken
        return self._at

    def _cut(self, end: int) -> None:
        del self._path[end:], self._tails[end + 1 :], self._runs[end + 1 :]
        if self._boundary is not None and self._boundary[0] > end:
            self._boundary = None

    def _is_overlong(self, position: int, token_id: int) -> bool:
        """Whether a token makes the number at a position too long although others are allowed. The automaton is at this
        position."""
        row = self._tokens.allowed_bits(self.matcher)
        self.keep_short(position, row)
        return not row[token_id >> 5] >> (token_id & 31) & 1

    def keep_short(self, position: int, row: Bits) -> None:
        """Removes tokens that would make a number too long, unless no other token is allowed."""
        banned = self._tokens.guard.too_long(self._tails[position])
        if banned is None or self._tokens.allows_letter(row):
            return
        kept = row & ~banned
        if kept.any():
            row[:] = kept


def write_only(token_id: int, row: Bits) -> None:
    """The bitmask that allows one token."""
    row[:] = 0
    row[token_id >> 5] = np.uint32(1 << (token_id & 31)).view(np.int32)
