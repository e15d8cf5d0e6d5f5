"""ForcedPrefix: an answer that must begin with given text, and goes on as it likes.

For prompts that were cut back to where a token surely ends: the model chooses among the tokens that spell what was cut
off, or a beginning of it. Knows bytes of tokens and no grammars. Special tokens spell nothing, so none comes before the
lead is said.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from quicksilver.constrain.runtime.canvas_masks import sweep
from quicksilver.core import ConstraintSpec
from quicksilver.errors import InvalidGrammar, RowFailed
from quicksilver.text.tokenizer import Tokenizer

Bits = NDArray[np.int32]


class ForcedPrefixes:
    """Makes constraints for one vocabulary, given as the bytes of each token. Safe to share between threads."""

    def __init__(self, texts: Sequence[bytes], vocab_size: int) -> None:
        self._texts = texts
        self._size = min(len(texts), vocab_size)
        self.num_words = -(-vocab_size // 32)

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int) -> ForcedPrefixes:
        """For engines that have no grammars."""
        return cls([tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)], vocab_size)

    def constraint(self, spec: ConstraintSpec) -> ForcedPrefix:
        if spec.grammar:
            raise InvalidGrammar("this engine was started without structured output", param="response_format")
        return ForcedPrefix(self, spec.lead.encode())

    def rest(self, due: bytes, token_id: int) -> bytes | None:
        """What is still due behind a token; None where the token may not come."""
        text = self._texts[token_id] if token_id < self._size else b""
        if text.startswith(due):
            return b""
        return due[len(text) :] if text and due.startswith(text) else None

    def bits(self, due: bytes) -> Bits:
        """The tokens that may come, one bit each."""
        if not due:
            return np.full(self.num_words, -1, dtype=np.int32)
        flags = np.zeros(self.num_words * 32, dtype=np.bool_)
        texts, ids = self._sorted
        for end in range(1, len(due)):
            flags[ids[bisect_left(texts, due[:end]) : bisect_right(texts, due[:end])]] = True
        first = bisect_left(texts, due)
        flags[ids[first : bisect_right(texts, due, lo=first, key=lambda text: text[: len(due)])]] = True
        return np.packbits(flags, bitorder="little").view(np.int32)

    @cached_property
    def _sorted(self) -> tuple[list[bytes], NDArray[np.int64]]:
        """Texts in order, and whose they are: those that begin alike lie together."""
        ids = sorted((i for i in range(self._size) if self._texts[i]), key=self._texts.__getitem__)
        return [self._texts[i] for i in ids], np.array(ids, dtype=np.int64)


class ForcedPrefix:
    """A `TokenConstraint`."""

    def __init__(self, prefixes: ForcedPrefixes, due: bytes) -> None:
        self._prefixes = prefixes
        self._due = due

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        """None: even one way to spell a text is the model's to choose."""
        return []

    def write_masks(self, ahead: Sequence[int], out: memoryview) -> int:
        rows = np.asarray(out).reshape(-1, self._prefixes.num_words)
        due: bytes | None = self._due
        num_rows = 0
        for row, token_id in zip(rows, [*ahead, None], strict=False):
            if due is None:
                break
            row[:] = self._prefixes.bits(due)
            num_rows += 1
            due = None if token_id is None else self._prefixes.rest(due, token_id)
        return num_rows

    def legal_prefix(self, tokens: Sequence[int]) -> int:
        due = self._due
        for i, token_id in enumerate(tokens):
            rest = self._prefixes.rest(due, token_id)
            if rest is None:
                return i
            due = rest
        return len(tokens)

    def sweep(self, canvas: Sequence[int | None]) -> list[int | None]:
        return sweep(self, canvas)

    def advance(self, tokens: Sequence[int]) -> None:
        for token_id in tokens:
            rest = self._prefixes.rest(self._due, token_id)
            if rest is None:
                raise RowFailed(f"token {token_id} does not spell what the answer must begin with")
            self._due = rest

    def can_stop(self) -> bool:
        return not self._due

    def must_stop(self) -> bool:
        return False

    def closing(self, room: int) -> list[int] | None:
        """None: an answer with too little room is cut, as any other."""
        return None

    def is_over(self) -> bool:
        return not self._due
