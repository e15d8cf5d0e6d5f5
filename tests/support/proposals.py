"""Scripted proposals for tests of decoders."""

from __future__ import annotations

import torch

from quicksilver.diffusion.sample import Proposal


def proposal(tokens: list[int], confidence: list[float]) -> Proposal:
    return Proposal(
        torch.tensor(tokens), torch.tensor(confidence), torch.zeros(len(tokens)), torch.ones(len(tokens)) > 0
    )


def confident(tokens: list[int]) -> Proposal:
    return proposal(tokens, [0.99] * len(tokens))
