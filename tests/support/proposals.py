"""Scripted proposals for tests of decoders."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quicksilver.diffusion.sample import Proposal
from quicksilver.diffusion.verify import lookup


def proposal(tokens: list[int], confidence: list[float]) -> Proposal:
    return Proposal(
        torch.tensor(tokens), torch.tensor(confidence), torch.zeros(len(tokens)), torch.ones(len(tokens)) > 0
    )


def confident(tokens: list[int]) -> Proposal:
    return proposal(tokens, [0.99] * len(tokens))


def with_lookup(text: Sequence[int], draft: Tensor, confidence: Tensor) -> Tensor:
    """`draft` (tokens,) with its first tokens replaced by those that prompt lookup finds in `text`."""
    found = lookup(text, draft, confidence)
    return torch.cat((found, draft[len(found) :]))
