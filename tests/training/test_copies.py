"""Which tokens of a rewritten region decide the edit."""

from __future__ import annotations

import pytest

from quicksilver.training.copies import deciding_tokens


@pytest.mark.parametrize(
    ("region", "answer", "decides"),
    [
        ("a\nb\nc", "a\nX\nc", ".#####"),
        ("a\nb\nc", "a\nc", "..##"),
        ("a\nb", "a\nb\nc", "...###"),
        ("a\nb\nc", "a\nb", "...#"),
        ("a\nb", "a\nb", "#.##"),
    ],
)
def test_what_departs_from_the_region_and_comes_back_decides(region: str, answer: str, decides: str) -> None:
    marks = deciding_tokens(region, answer, [1] * len(answer) + [0])
    assert "".join("#" if mark else "." for mark in marks) == decides


def test_tokens_longer_than_a_character_decide_if_a_part_of_them_does() -> None:
    # Tokens: "ab", "\n", "cX", "\n", "d".
    assert deciding_tokens("ab\ncd\nd", "ab\ncX\nd", [2, 1, 2, 1, 1]) == [False, True, True, True, True]


def test_lengths_are_those_of_utf_8() -> None:
    assert deciding_tokens("ä\nb", "ä\nc", [2, 1, 1]) == [False, True, True]
