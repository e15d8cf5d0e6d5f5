"""Limits the length of numbers: at most 40 digits in a row, and no exponent that overflows a double.

The grammar of JSON allows numbers of any length, and `1e999` is read as infinity. The limit applies inside numbers
only. If the grammar allows the letter z as the next byte, the current text is a string or prose and not a number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Digits in a row, before or after the decimal point.
LONGEST_RUN = 40
LONGEST_EXPONENT = 2
# Number of preceding bytes that are inspected to decide whether digits belong to a JSON number.
TAIL_LEN = 64
DIGITS = frozenset(b"0123456789")
NUMBER_BYTES = frozenset(b"0123456789.eE+-")
BEFORE_NUMBER = frozenset(b":,[ \n\t\r")

Bits = NDArray[np.int32]


def digits_left(tail: bytes) -> int | None:
    """How many more digits the number at the end of `tail` may have; None if there is no number."""
    end = len(tail)
    start = end
    while start > 0 and tail[start - 1] in NUMBER_BYTES:
        start -= 1
    if start == end or (start > 0 and tail[start - 1] not in BEFORE_NUMBER):
        return None
    run = end
    while run > start and tail[run - 1] in DIGITS:
        run -= 1
    mark = run - 1 if run > start and tail[run - 1] in b"+-" else run
    has_exponent = mark > start and tail[mark - 1] in b"eE"
    return (LONGEST_EXPONENT if has_exponent else LONGEST_RUN) - (end - run)


def leading_digits(text: bytes) -> int:
    return next((i for i, byte in enumerate(text) if byte not in DIGITS), len(text))


class DigitGuard:
    """The limit for one vocabulary."""

    def __init__(self, token_bytes: Sequence[bytes], num_words: int) -> None:
        self._leading = [leading_digits(text) for text in token_bytes]
        self._num_words = num_words
        leading = np.array(self._leading, dtype=np.int64)
        self._by_count = {n: self._bits(leading >= n) for n in range(1, int(leading.max(initial=0)) + 1)}

    def too_long(self, tail: bytes) -> Bits | None:
        """Bits of the tokens that would make the number too long; None if there are none."""
        left = digits_left(tail)
        return None if left is None else self._by_count.get(max(left, 0) + 1)

    def exceeds(self, tail: bytes, token_id: int) -> bool:
        """Whether this token would make the number at the end of `tail` too long."""
        num_digits = self._leading[token_id]
        if not num_digits:
            return False
        left = digits_left(tail)
        return left is not None and num_digits > max(left, 0)

    def _bits(self, chosen: NDArray[np.bool_]) -> Bits:
        padded = np.zeros(self._num_words * 32, dtype=np.bool_)
        padded[: len(chosen)] = chosen[: self._num_words * 32]
        return np.packbits(padded, bitorder="little").view(np.int32)
