"""Scripted proposals for tests of decoders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quicksilver.diffusion.sample import Proposal
from quicksilver.diffusion.verify import lookup


def proposal(tokens: list[int], confidence: list[float]) -> Proposal:
    return proposal_of(tokens, confidence, [0.0] * len(tokens))


def proposal_of(tokens: Sequence[int], confidence: Sequence[float], entropy: Sequence[float]) -> Proposal:
    floats = (np.array(confidence, np.float32), np.array(entropy, np.float32))
    return Proposal(np.array(tokens, np.int64), *floats, np.ones(len(tokens), np.bool_))


def confident(tokens: list[int]) -> Proposal:
    return proposal(tokens, [0.99] * len(tokens))


def with_lookup(
    text: Sequence[int], draft: npt.NDArray[np.int64], confidence: npt.NDArray[np.float32]
) -> npt.NDArray[np.int64]:
    """`draft` (tokens,) with its first tokens replaced by those that prompt lookup finds in `text`."""
    found = lookup(text, draft, confidence)
    return np.concatenate((found, draft[len(found) :]))
