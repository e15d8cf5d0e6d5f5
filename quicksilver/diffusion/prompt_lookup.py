"""Drafts from the text itself: where its last tokens stood before, what followed them then may follow again.

Code, JSON and edits repeat what their prompts say, often for longer than a canvas sees ahead. The canvas has the first
word: what is recalled must begin as the canvas's own draft does, and ends where the canvas is sure of something else. A
draft decides how many tokens a round gives, never which.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

NUM_SAME = 4
"""Tokens that must have stood together before."""
WINDOW = 4096
"""How far back is looked."""
SURE = 0.9
"""From this confidence on a canvas knows better than the text."""


def recall(text: Sequence[int], draft: Tensor, confidence: Tensor) -> Tensor:
    """`draft` (tokens,), or where the end of `text` and the draft's first token recur, what followed them last time and
    behind that the rest of `draft`."""
    follows = recalled_run(text, draft, confidence)
    return torch.cat((follows, draft[len(follows) :]))


def recalled_run(text: Sequence[int], draft: Tensor, confidence: Tensor) -> Tensor:
    """What stands for the first tokens of `draft`; nothing where `text` recalls nothing."""
    found = _following(np.array(text[-WINDOW:], dtype=np.int64), len(draft))
    if not len(found) or int(found[0]) != int(draft[0]):
        return draft[:0]
    follows = torch.from_numpy(found)
    differs = follows != draft[: len(follows)]
    is_refuted = (differs & (confidence[: len(follows)] >= SURE)).nonzero()
    return follows[: int(is_refuted[0]) if len(is_refuted) else len(follows)]


def _following(text: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Up to `count` tokens behind the latest earlier place of the last `NUM_SAME` tokens; none where there is none."""
    num_places = len(text) - NUM_SAME
    if num_places < 1:
        return text[:0]
    is_same = np.ones(num_places, dtype=bool)
    for i, token in enumerate(text[num_places:]):
        is_same &= text[i : num_places + i] == token
    places = np.flatnonzero(is_same)
    if not len(places):
        return text[:0]
    begin = int(places[-1]) + NUM_SAME
    return text[begin : begin + count]
