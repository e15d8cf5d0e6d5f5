"""The limit on the digits of a number."""

from __future__ import annotations

import numpy as np
import pytest

from quicksilver.constrain.runtime.digits import LONGEST_EXPONENT, LONGEST_RUN, DigitGuard, digits_left, leading_digits


@pytest.mark.parametrize(
    ("tail", "left"),
    [
        (b"", None),
        (b'{"a":', None),
        (b'{"a":12', LONGEST_RUN - 2),
        (b"[-3.25", LONGEST_RUN - 2),
        (b"7e", LONGEST_EXPONENT),
        (b"7e-", LONGEST_EXPONENT),
        (b"7E+12", 0),
        (b"1.5e3", 1),
        (b"abc123", None),
        (b'"x-20', None),
        (b": 42", LONGEST_RUN - 2),
    ],
)
def test_digits_left(tail: bytes, left: int | None) -> None:
    assert digits_left(tail) == left


def test_the_limit_counts_leading_digits_of_a_token() -> None:
    assert [leading_digits(text) for text in (b"123", b"1a", b"a1", b"")] == [3, 1, 0, 0]
    guard = DigitGuard([b"1", b"12", b"123", b"x"], 1)
    assert guard.exceeds(b"4e1", 1)
    assert not guard.exceeds(b"4e1", 0)
    assert not guard.exceeds(b"word", 2)
    banned = guard.too_long(b"4e1")
    assert banned is not None
    assert np.unpackbits(banned.view(np.uint8), bitorder="little")[:4].tolist() == [0, 1, 1, 0]
    assert guard.too_long(b'"text') is None
    assert guard.too_long(b"4") is None
