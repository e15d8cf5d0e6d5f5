"""How much each canvas row counts in the loss, and how the learning rate moves.

Pure functions of numbers and tensors; no model, no state. Rows near the committed text weigh most, because a draft is
accepted left to right: a late row only matters when every row before it was right.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def index_weight(distance: Tensor, decay: float, floor: float = 0.05) -> Tensor:
    """exp(-distance / decay) + floor, where distance counts the undecided rows since the last known token."""
    return torch.exp(-distance.float() / decay) + floor


def linear_decay(progress: float) -> float:
    """1 at the start, 0 at the end; progress outside [0, 1] is clamped."""
    return 1.0 - min(max(progress, 0.0), 1.0)


def cosine_decay(progress: float) -> float:
    """1 at the start, 0 at the end, flat at both."""
    return 0.5 * (1.0 + math.cos(math.pi * min(max(progress, 0.0), 1.0)))
