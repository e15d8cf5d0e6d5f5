"""Prompt lookup: if the last tokens occurred earlier in the text, the tokens that followed them are the draft.

Code, JSON and edits often copy long spans of the prompt, longer than the number of tokens that a canvas predicts well.
The canvas draft has priority: the looked-up tokens must begin with the same token as the canvas draft, and they end at
the first position where the canvas predicts a different token with high confidence. A draft changes how many tokens a
round commits, never which ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# These values gave the most tokens per round for the model nano on held-out prompts (decision 0007).
# Length of the n-gram that must have occurred before.
NGRAM_LEN = 4
# A canvas token with at least this confidence is not replaced. At 0.5, edits lose a fifth of their tokens per round.
MIN_CANVAS_CONFIDENCE = 0.9
# Tokens at the end of the text that are searched.
WINDOW = 4096


def with_lookup(text: Sequence[int], draft: Tensor, confidence: Tensor) -> Tensor:
    """`draft` (tokens,) with its first tokens replaced by those that prompt lookup finds in `text`."""
    found = lookup(text, draft, confidence)
    return torch.cat((found, draft[len(found) :]))


def lookup(text: Sequence[int], draft: Tensor, confidence: Tensor) -> Tensor:
    """The tokens that replace the first tokens of `draft`; empty if the end of `text` has not occurred before."""
    followers = _followers(np.array(text[-WINDOW:], dtype=np.int64), len(draft))
    if not len(followers) or int(followers[0]) != int(draft[0]):
        return draft[:0]
    found = torch.from_numpy(followers)
    differs = found != draft[: len(found)]
    is_overruled = (differs & (confidence[: len(found)] >= MIN_CANVAS_CONFIDENCE)).nonzero()
    return found[: int(is_overruled[0]) if len(is_overruled) else len(found)]


def _followers(text: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Up to `count` tokens after the latest earlier occurrence of the last `NGRAM_LEN` tokens; empty without one."""
    num_starts = len(text) - NGRAM_LEN
    if num_starts < 1:
        return text[:0]
    is_match = np.ones(num_starts, dtype=bool)
    for i, token in enumerate(text[num_starts:]):
        is_match &= text[i : num_starts + i] == token
    starts = np.flatnonzero(is_match)
    if not len(starts):
        return text[:0]
    begin = int(starts[-1]) + NGRAM_LEN
    return text[begin : begin + count]
