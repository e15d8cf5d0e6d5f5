"""Constraints on the beginning of an answer: the shared part, and a minimum number of tokens. `forced_prefix.py` has
the constraint that an answer begins with a given text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from quicksilver.constrain.runtime.canvas_masks import sweep
from quicksilver.constrain.runtime.tokens import bits_of
from quicksilver.errors import RowFailed


class BeginningConstraint(ABC):
    """The part of a `core.TokenConstraint` that constraints on the beginning of an answer share. It forces no token and
    no end."""

    group = None

    @abstractmethod
    def is_over(self) -> bool:
        """Whether all further tokens are legal."""

    @abstractmethod
    def legal_prefix(self, tokens: Sequence[int]) -> int: ...

    @abstractmethod
    def write_masks(self, ahead: Sequence[int], out: memoryview) -> int: ...

    @abstractmethod
    def advance(self, tokens: Sequence[int]) -> None: ...

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        return []

    def sweep(self, canvas: Sequence[int | None]) -> list[int | None]:
        return sweep(self, canvas)

    def can_stop(self) -> bool:
        return self.is_over()

    def must_stop(self) -> bool:
        return False

    def closing(self, room: int) -> list[int] | None:
        return None


class MinTokens(BeginningConstraint):
    """`end_ids` are illegal until `num_left` tokens are committed."""

    def __init__(self, num_left: int, end_ids: Sequence[int], vocab_size: int) -> None:
        self._num_left = num_left
        self._end_ids = frozenset(i for i in end_ids if i < vocab_size)
        self._num_words = -(-vocab_size // 32)

    def write_masks(self, ahead: Sequence[int], out: memoryview) -> int:
        rows = np.asarray(out).reshape(-1, self._num_words)
        num_rows = min(self.legal_prefix(ahead) + 1, len(rows))
        rows[:num_rows] = -1
        rows[: min(self._num_left, num_rows)] = ~bits_of(sorted(self._end_ids), self._num_words)
        return num_rows

    def legal_prefix(self, tokens: Sequence[int]) -> int:
        early = enumerate(tokens[: self._num_left])
        return next((i for i, token_id in early if token_id in self._end_ids), len(tokens))

    def advance(self, tokens: Sequence[int]) -> None:
        if self.legal_prefix(tokens) < len(tokens):
            raise RowFailed("a token ends the answer before it has the requested number of tokens")
        self._num_left = max(self._num_left - len(tokens), 0)

    def is_over(self) -> bool:
        return not self._num_left
