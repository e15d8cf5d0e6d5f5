"""The `Decoder` interface and its records: `Canvas`, `Tail` and `Decision`.

A row at position p predicts token p + 1. So the last context row proposes canvas position 0, and the rows of the tail
propose the other positions. A decoder is stateless: everything that lasts from one forward to the next is in the
Canvas.
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
    """The rows after the context. Causal rows write their KV; canvas rows attend to each other and write nothing."""

    token_ids: tuple[int, ...] = ()
    is_masked: tuple[bool, ...] = ()  # rows with the mask embedding of their canvas index; all False if causal
    is_causal: bool = False
    branches: tuple[int, ...] = ()  # scoring: lengths of independent causal branches, which write no KV
    targets: tuple[tuple[int, int], ...] = ()  # scoring: (row, token) to score; row 0 is the last context row

    @property
    def known(self) -> tuple[int, ...]:
        """The leading decided tokens. Their rows have a fully decided left context, so a grammar applies exactly."""
        end = self.is_masked.index(True) if True in self.is_masked else len(self.token_ids)
        return self.token_ids[:end]


@dataclass(frozen=True, slots=True)
class Canvas:
    """The positions after the committed text that are predicted together. Its tensors are never written to."""

    token_ids: Tensor  # (canvas_len,) int64, the current guess; undefined where masked and never proposed
    is_masked: Tensor  # (canvas_len,) bool
    confidence: Tensor  # (canvas_len,) float32
    step: int = 0  # forwards that this canvas has been through
    is_draft: bool = False  # True between the draft forward and the verify forward of a round
    num_passes: int = 0  # forwards since the last mask was filled (`edit`)

    @staticmethod
    @cache
    def blank(canvas_len: int) -> Canvas:
        """All masks. Cached: one object per length serves all requests."""
        return Canvas(
            torch.zeros(canvas_len, dtype=torch.int64),
            torch.ones(canvas_len, dtype=torch.bool),
            torch.zeros(canvas_len),
        )

    @property
    def is_fresh(self) -> bool:
        """Whether it has not been through a forward yet."""
        return self.step == 0 and not self.is_draft

    @property
    def num_decided(self) -> int:
        """Length of the leading run without masks."""
        return int((~self.is_masked).cumprod(0).sum())

    @property
    def decided_tokens(self) -> list[int | None]:
        """The token of each position, None where it is masked."""
        pairs = zip(self.token_ids.tolist(), self.is_masked.tolist(), strict=True)
        return [None if is_masked else token_id for token_id, is_masked in pairs]

    def with_decided(self, tokens: Sequence[int | None]) -> Canvas:
        """The canvas with these tokens decided and the positions of None masked, which keep their guesses."""
        guesses = self.token_ids.tolist()
        token_ids = [guess if token is None else token for token, guess in zip(tokens, guesses, strict=True)]
        is_masked = [token is None for token in tokens]
        return replace(self, token_ids=torch.tensor(token_ids), is_masked=torch.tensor(is_masked))


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of `Decoder.decide` for one forward."""

    commit: list[int] = field(default_factory=list)  # tokens that become final, left to right
    canvas: Canvas | None = None  # the canvas of the next forward; None opens a new one
    num_accepted: int = 0  # leading rows of a causal tail that were confirmed, so that their KV is final
    num_drafted: int = 0


class Decoder(Protocol):
    """One decoding algorithm, configured for one request."""

    def open(self, max_tokens: int) -> Canvas:
        """A new canvas of at most `max_tokens` positions."""

    def tail(self, canvas: Canvas) -> Tail:
        """The rows that follow the context in the next forward."""

    def decide(self, canvas: Canvas, proposal: Proposal) -> Decision:
        """`proposal` has one entry for the last context row and one per tail row.

        Commits at least one token after finitely many calls, whatever is proposed.
        """


def canvas_tail(canvas: Canvas) -> Tail:
    """Rows for every position but the last: the row of position i proposes position i + 1."""
    return Tail(tuple(canvas.token_ids.tolist()[:-1]), tuple(canvas.is_masked.tolist()[:-1]))
