"""A toy grammar over token ids, for engines without a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quicksilver.constrain.runtime.canvas_masks import sweep

# The stop token of the tiny models.
STOP = 96


class Staircase:
    """Token i must be congruent to i modulo 7, and every sixth is forced. A text has `length` tokens, followed by
    `stop`, the last token of the vocabulary."""

    def __init__(self, length: int = 25, stop: int = STOP) -> None:
        self.length = length
        self.stop = stop
        self.taken: list[int] = []

    def may_come(self, place: int) -> list[int]:
        if place >= self.length:
            return [self.stop]
        if place % 6 == 5:
            return [place % 7 + 7]
        return [token for token in range(self.stop) if token % 7 == place % 7]

    group = None

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        found: list[int] = []
        start = len(self.taken) + len(ahead)
        while len(choices := self.may_come(start + len(found))) == 1 and choices != [self.stop]:
            found += choices
        return found

    def write_masks(self, ahead: Sequence[int], out: memoryview) -> int:
        words = np.asarray(out).view(np.int32)
        num_rows = min(self.legal_prefix(ahead) + 1, len(ahead) + 1)
        for row in range(num_rows):
            for token in self.may_come(len(self.taken) + row):
                words[row, token // 32] |= np.int32(1 << (token % 32)) if token % 32 < 31 else np.int32(-(2**31))
        return num_rows

    def legal_prefix(self, tokens: Sequence[int]) -> int:
        for i, token in enumerate(tokens):
            if token not in self.may_come(len(self.taken) + i):
                return i
        return len(tokens)

    def sweep(self, canvas: Sequence[int | None]) -> list[int | None]:
        return sweep(self, canvas)

    def advance(self, tokens: Sequence[int]) -> None:
        assert self.legal_prefix(tokens) == len(tokens), "an illegal token was committed"
        self.taken += tokens

    def can_stop(self) -> bool:
        return len(self.taken) == self.length

    def must_stop(self) -> bool:
        return self.can_stop()

    def closing(self, room: int) -> list[int] | None:
        left = [self.may_come(place)[0] for place in range(len(self.taken), self.length)]
        return left if len(left) == room else None

    def is_over(self) -> bool:
        return False
