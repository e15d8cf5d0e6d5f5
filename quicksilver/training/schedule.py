"""Loss weights of canvas rows, and learning-rate schedules.

Pure functions. Rows near the committed text have the largest weight, because a draft is accepted from left to right: a
late row matters only if all rows before it are correct.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def index_weight(distance: Tensor, decay: float, floor: float = 0.05) -> Tensor:
    """exp(-distance / decay) + floor, where distance is the number of undecided rows since the last known token."""
    return torch.exp(-distance.float() / decay) + floor


def linear_decay(progress: float) -> float:
    """1 at the start, 0 at the end; progress outside [0, 1] is clamped."""
    return 1.0 - min(max(progress, 0.0), 1.0)


def cosine_decay(progress: float) -> float:
    """1 at the start, 0 at the end, with zero slope at both."""
    return 0.5 * (1.0 + math.cos(math.pi * min(max(progress, 0.0), 1.0)))
