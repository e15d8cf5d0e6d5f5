"""Scoring: log-probabilities of given tokens, read from one forward.

A Scorer stands where a decoder stands, so scoring rides through the same scheduler, pages and prefix cache. Its tail is
either several continuations as causal branches side by side, or one half-masked canvas; its answer is read from
log-probabilities instead of proposals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quicksilver.core import Scores
from quicksilver.diffusion.decoder import Canvas, Decision, Tail
from quicksilver.diffusion.sample import Proposal


@dataclass(frozen=True, slots=True)
class Scorer:
    """Which rows follow the context, and which token's log-probability is wanted from which row."""

    after: Tail
    rows: tuple[int, ...]
    """0 is the last context row, then the tail's."""
    tokens: tuple[int, ...]
    lengths: tuple[int, ...]
    """How the answer is cut into parts."""

    def open(self, room: int) -> Canvas:
        return Canvas.blank(1)

    def tail(self, canvas: Canvas) -> Tail:
        return self.after

    def decide(self, canvas: Canvas, proposal: Proposal) -> Decision:
        return Decision([0])

    def read(self, logprobs: Tensor) -> Scores:
        """`logprobs`: one number per wanted token, in order."""
        return Scores(tuple(tuple(part.tolist()) for part in torch.split(logprobs, list(self.lengths))))


def score_continuations(continuations: Sequence[Sequence[int]]) -> Scorer:
    """The causal likelihood of each continuation: its first token from the context, the others from its own branch."""
    rows, next_row = list[int](), 1
    for tokens in continuations:
        rows += [0, *range(next_row, next_row + len(tokens) - 1)]
        next_row += len(tokens) - 1
    inner = tuple(token for tokens in continuations for token in tokens[:-1])
    branches = tuple(len(tokens) - 1 for tokens in continuations)
    wanted = tuple(token for tokens in continuations for token in tokens)
    tail = Tail(inner, (False,) * len(inner), branches=branches)
    return Scorer(tail, tuple(rows), wanted, tuple(len(tokens) for tokens in continuations))


def score_masked(tokens: Sequence[int], is_masked: Sequence[bool]) -> Scorer:
    """The masked positions of one canvas given its visible ones: a sample of the diffusion bound."""
    tail = Tail(tuple(tokens[:-1]), tuple(is_masked[:-1]))
    hidden = [i for i, masked in enumerate(is_masked) if masked]
    return Scorer(tail, tuple(hidden), tuple(tokens[i] for i in hidden), (len(hidden),))
