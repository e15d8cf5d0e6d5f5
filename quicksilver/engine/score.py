"""Scoring: the likelihood of several continuations of one prompt, read from one forward.

A Scorer stands where a decoder stands, so scoring rides through the same scheduler, pages and prefix cache; its tail is
the continuations as causal branches side by side, and its answer is read from log-probabilities instead of proposals.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quicksilver.core import Scores
from quicksilver.diffusion.decoder import Canvas, Decision, Tail
from quicksilver.diffusion.sample import Proposal


@dataclass(frozen=True, slots=True)
class Scorer:
    continuations: tuple[tuple[int, ...], ...]

    def open(self, room: int) -> Canvas:
        return Canvas.blank(1)

    def tail(self, canvas: Canvas) -> Tail:
        branches = [tokens[:-1] for tokens in self.continuations]
        token_ids = tuple(token for tokens in branches for token in tokens)
        return Tail(token_ids, (False,) * len(token_ids), branches=tuple(len(tokens) for tokens in branches))

    def decide(self, canvas: Canvas, proposal: Proposal) -> Decision:
        return Decision([0])

    def targets(self) -> tuple[list[int], list[int]]:
        """(row, token) pairs in order of the continuations: row 0 is the last context row, then the tail's."""
        rows, tokens, next_row = list[int](), list[int](), 1
        for continuation in self.continuations:
            rows += [0, *range(next_row, next_row + len(continuation) - 1)]
            tokens += continuation
            next_row += len(continuation) - 1
        return rows, tokens

    def read(self, logprobs: Tensor) -> Scores:
        """`logprobs`: one number per pair of `targets`, in its order."""
        lengths = [len(continuation) for continuation in self.continuations]
        return Scores(tuple(tuple(part.tolist()) for part in torch.split(logprobs, lengths)))
