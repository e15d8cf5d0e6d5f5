"""A constraint that the answer begins with given text (token healing).

For prompts that were cut back to a token boundary: the model chooses among the tokens that spell the removed text or a
prefix of it, and is free afterwards. Special tokens spell nothing, so none is allowed before the text is complete.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from quicksilver.constrain.runtime.digits import Bits
from quicksilver.constrain.runtime.min_tokens import BeginningConstraint, MinTokens
from quicksilver.core import ConstraintSpec, TokenConstraint
from quicksilver.errors import InvalidGrammar, RowFailed
from quicksilver.text.tokenizer import Tokenizer


class ForcedPrefixes:
    """Creates constraints for one vocabulary, given as the bytes of each token. Safe to share between threads."""

    def __init__(self, texts: Sequence[bytes], vocab_size: int) -> None:
        self._texts = texts
        self._vocab_size = vocab_size
        self._size = min(len(texts), vocab_size)
        self.num_words = -(-vocab_size // 32)

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int) -> ForcedPrefixes:
        """For engines without grammars."""
        return cls([tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)], vocab_size)

    def constraint(self, spec: ConstraintSpec) -> TokenConstraint:
        """Every constraint that needs no grammar."""
        if spec.grammar:
            raise InvalidGrammar("this engine was started without structured output", param="response_format")
        if spec.min_tokens:
            return MinTokens(spec.min_tokens, spec.end_ids, self._vocab_size)
        return ForcedPrefix(self, spec.lead.encode())

    def rest(self, text_left: bytes, token_id: int) -> bytes | None:
        """The rest of the text after a token; None if the token is not allowed."""
        text = self._texts[token_id] if token_id < self._size else b""
        if text.startswith(text_left):
            return b""
        return text_left[len(text) :] if text and text_left.startswith(text) else None

    def bits(self, text_left: bytes) -> Bits:
        """The allowed tokens, one bit each."""
        if not text_left:
            return np.full(self.num_words, -1, dtype=np.int32)
        flags = np.zeros(self.num_words * 32, dtype=np.bool_)
        texts, ids = self._sorted
        for end in range(1, len(text_left)):
            flags[ids[bisect_left(texts, text_left[:end]) : bisect_right(texts, text_left[:end])]] = True
        first = bisect_left(texts, text_left)
        flags[ids[first : bisect_right(texts, text_left, lo=first, key=lambda text: text[: len(text_left)])]] = True
        return np.packbits(flags, bitorder="little").view(np.int32)

    @cached_property
    def _sorted(self) -> tuple[list[bytes], NDArray[np.int64]]:
        """Token texts in order, and their ids; texts with a common prefix are adjacent."""
        ids = sorted((i for i in range(self._size) if self._texts[i]), key=self._texts.__getitem__)
        return [self._texts[i] for i in ids], np.array(ids, dtype=np.int64)


class ForcedPrefix(BeginningConstraint):
    """The answer begins with `text_left`; the model chooses its tokenisation."""

    def __init__(self, prefixes: ForcedPrefixes, text_left: bytes) -> None:
        self._prefixes = prefixes
        self._rest = text_left

    def write_masks(self, ahead: Sequence[int], out: memoryview) -> int:
        rows = np.asarray(out).reshape(-1, self._prefixes.num_words)
        text_left: bytes | None = self._rest
        num_rows = 0
        for row, token_id in zip(rows, [*ahead, None], strict=False):
            if text_left is None:
                break
            row[:] = self._prefixes.bits(text_left)
            num_rows += 1
            text_left = None if token_id is None else self._prefixes.rest(text_left, token_id)
        return num_rows

    def legal_prefix(self, tokens: Sequence[int]) -> int:
        text_left = self._rest
        for i, token_id in enumerate(tokens):
            rest = self._prefixes.rest(text_left, token_id)
            if rest is None:
                return i
            text_left = rest
        return len(tokens)

    def advance(self, tokens: Sequence[int]) -> None:
        for token_id in tokens:
            rest = self._prefixes.rest(self._rest, token_id)
            if rest is None:
                raise RowFailed(f"token {token_id} does not continue the required beginning of the answer")
            self._rest = rest

    def is_over(self) -> bool:
        return not self._rest
