"""Which masked positions commit: the four rules of `confidence`, as pure functions over the last dimension.

Each takes what the rows say and which positions are masked, and returns a boolean choice that is a subset of the masked
ones and never empty where something is masked. Leading dimensions are batch.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _most_confident(score: Tensor, is_masked: Tensor) -> Tensor:
    """One-hot of the best masked position; all False where nothing is masked."""
    best = score.masked_fill(~is_masked, -torch.inf).argmax(-1, keepdim=True)
    return torch.zeros_like(is_masked).scatter(-1, best, True) & is_masked


def by_threshold(confidence: Tensor, is_masked: Tensor, threshold: float) -> Tensor:
    """A: every masked position surer than `threshold`, or else the surest one."""
    return (is_masked & (confidence > threshold)) | _most_confident(confidence, is_masked)


def by_count(confidence: Tensor, is_masked: Tensor, num_chosen: Tensor | int) -> Tensor:
    """B: the `num_chosen` surest masked positions (at least one)."""
    rank = _rank(confidence.masked_fill(~is_masked, -torch.inf))
    limit = torch.as_tensor(num_chosen, device=confidence.device).clamp_min(1)
    return is_masked & (rank < limit)


def by_factor(confidence: Tensor, is_masked: Tensor, factor: float) -> Tensor:
    """C: the largest n whose n-th best confidence is at least 1 - factor / (n + 1)."""
    ordered = confidence.masked_fill(~is_masked, -torch.inf).sort(dim=-1, descending=True).values
    n = torch.arange(1, confidence.shape[-1] + 1, device=confidence.device)
    passes = ordered >= 1 - factor / (n + 1)
    largest = torch.where(passes, n, 0).amax(-1, keepdim=True)
    return by_count(confidence, is_masked, largest)


def by_entropy(entropy: Tensor, is_masked: Tensor, bound: float) -> Tensor:
    """D: positions of lowest entropy while the sum of those before them stays within `bound` nats (EB sampler)."""
    cost = entropy.masked_fill(~is_masked, torch.inf)
    ordered, index = cost.sort(dim=-1)
    before = ordered.cumsum(-1) - ordered
    fits = (before <= bound) & ordered.isfinite()
    return torch.zeros_like(is_masked).scatter(-1, index, fits) & is_masked


def static_count(num_masked: int, steps_left: int) -> int:
    """How many positions rule B takes now so that `num_masked` are gone after `steps_left` steps."""
    return -(-num_masked // max(steps_left, 1))


def _rank(score: Tensor) -> Tensor:
    """0 for the largest; ties go to the left."""
    order = score.argsort(dim=-1, descending=True, stable=True)
    return order.argsort(dim=-1, stable=True)
