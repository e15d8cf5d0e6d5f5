"""What a decoder is: it says which rows follow the context, and decides from what those rows propose.

A row at position p predicts token p+1, so the last context row proposes canvas position 0 and the tail's rows propose
the rest. A decoder keeps no state of its own: everything it needs from one forward to the next is the Canvas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from quicksilver.diffusion.sample import Proposal


@dataclass(frozen=True, slots=True)
class Tail:
    """The rows after the context. Causal rows write their KV; canvas rows see each other and write nothing."""

    token_ids: tuple[int, ...] = ()
    is_masked: tuple[bool, ...] = ()
    """Rows that hold the mask embedding of their index instead of a token; all False on a causal tail."""
    is_causal: bool = False
    branches: tuple[int, ...] = ()
    """Lengths of independent causal branches that the rows form side by side (scoring); these write nothing."""
    targets: tuple[tuple[int, int], ...] = ()
    """Scoring: (row, token) pairs whose log-probabilities are asked for. Row 0 is the last context row."""

    @property
    def known(self) -> tuple[int, ...]:
        """The leading tokens whose rows' left context is fully decided: where grammar and penalties apply exactly."""
        end = self.is_masked.index(True) if True in self.is_masked else len(self.token_ids)
        return self.token_ids[:end]


@dataclass(frozen=True, slots=True)
class Canvas:
    """The positions after the committed text that are being decided together."""

    token_ids: Tensor  # (canvas_len,) int64, best guess; meaningless where masked and never proposed
    is_masked: Tensor  # (canvas_len,) bool
    confidence: Tensor  # (canvas_len,) float32
    step: int = 0
    """Forwards this canvas has had."""
    is_draft: bool = False
    """True between the draft and the verify forward of a round."""
    num_passes: int = 0
    """Forwards since the last mask went."""

    @staticmethod
    @cache
    def blank(canvas_len: int) -> Canvas:
        """One for all: nobody writes into a canvas."""
        return Canvas(
            torch.zeros(canvas_len, dtype=torch.int64),
            torch.ones(canvas_len, dtype=torch.bool),
            torch.zeros(canvas_len),
        )

    @property
    def is_fresh(self) -> bool:
        """Whether no forward has seen it yet."""
        return self.step == 0 and not self.is_draft

    @property
    def num_decided(self) -> int:
        """Length of the leading run without masks."""
        return int((~self.is_masked).cumprod(0).sum())

    @property
    def tokens_or_holes(self) -> list[int | None]:
        pairs = zip(self.token_ids.tolist(), self.is_masked.tolist(), strict=True)
        return [None if is_masked else token_id for token_id, is_masked in pairs]

    def holding(self, tokens: Sequence[int | None]) -> Canvas:
        """The same canvas with these tokens decided and the rest masked, its guesses kept."""
        guesses = self.token_ids.tolist()
        token_ids = [guess if token is None else token for token, guess in zip(tokens, guesses, strict=True)]
        is_masked = [token is None for token in tokens]
        return replace(self, token_ids=torch.tensor(token_ids), is_masked=torch.tensor(is_masked))


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of one forward. `commit` is final, left to right; `canvas` goes on, or None for a fresh one."""

    commit: list[int] = field(default_factory=list)
    canvas: Canvas | None = None
    num_accepted: int = 0
    """Leading causal tail rows that proved right, so that their KV is final."""
    num_drafted: int = 0


class Decoder(Protocol):
    """One strategy, configured for one request."""

    def open(self, room: int) -> Canvas:
        """A fresh canvas for at most `room` tokens."""

    def tail(self, canvas: Canvas) -> Tail:
        """The rows that follow the context in the next forward."""

    def decide(self, canvas: Canvas, proposal: Proposal) -> Decision:
        """`proposal` has one entry for the last context row and one per tail row. Commits at least one token in
        finitely many steps whatever is proposed."""


def canvas_tail(canvas: Canvas) -> Tail:
    """Rows for every position but the last: the row of position i proposes position i + 1."""
    return Tail(tuple(canvas.token_ids.tolist()[:-1]), tuple(canvas.is_masked.tolist()[:-1]))
