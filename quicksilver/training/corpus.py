"""Texts of the evaluations, and training texts that share a passage with them. Needs only the standard library and
numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quicksilver.hub.data_files import read_records

GRAM_LEN = 13


class OverlapCheck:
    """Finds texts that share 13 consecutive words with an evaluation data set."""

    def __init__(self, evaluation_texts: Iterable[str]) -> None:
        grams = [_grams(text) for text in evaluation_texts]
        self._known = np.unique(np.concatenate(grams)) if grams else np.empty(0, dtype=np.uint64)

    def overlaps(self, text: str) -> bool:
        grams = _grams(text)
        if not len(grams) or not len(self._known):
            return False
        place = np.searchsorted(self._known, grams).clip(max=len(self._known) - 1)
        return bool((self._known[place] == grams).any())


def evaluation_texts(path: Path) -> Iterator[str]:
    """Yield every string of every row of an evaluation pack."""
    for row in read_records(path):
        yield from _strings(row)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


# Punctuation and case are ignored, so that they do not hide a copy.
_LETTERS = str.maketrans(dict.fromkeys("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", " "))
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def _grams(text: str) -> npt.NDArray[np.uint64]:
    """One hash per run of GRAM_LEN words. Equal runs have equal hashes within a process."""
    words = text.lower().translate(_LETTERS).split()
    if len(words) < GRAM_LEN:
        return np.empty(0, dtype=np.uint64)
    hashes = np.fromiter((hash(word) & 0xFFFFFFFFFFFFFFFF for word in words), dtype=np.uint64, count=len(words))
    total = np.zeros(len(words) - GRAM_LEN + 1, dtype=np.uint64)
    for offset in range(GRAM_LEN):
        total = total * _MULTIPLIER + hashes[offset : offset + len(total)]
    return total
