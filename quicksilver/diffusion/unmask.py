"""Commit rules: which masked positions are decided, as pure functions over the last dimension.

Each rule takes the confidence (or entropy) of all positions and which are masked. It returns a boolean choice: a subset
of the masked positions that is empty only if nothing is masked. Leading dimensions are batch dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor


def confidence_threshold(confidence: Tensor, is_masked: Tensor, threshold: float) -> Tensor:
    """Every masked position with a confidence above `threshold`, and always the most confident one."""
    best = confidence.masked_fill(~is_masked, -torch.inf).argmax(-1, keepdim=True)
    is_best = torch.zeros_like(is_masked).scatter(-1, best, True) & is_masked
    return (is_masked & (confidence > threshold)) | is_best


def most_confident(confidence: Tensor, is_masked: Tensor, num_chosen: Tensor | int) -> Tensor:
    """The `num_chosen` most confident masked positions, at least one. Ties go to the left."""
    order = confidence.masked_fill(~is_masked, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    rank = order.argsort(dim=-1, stable=True)
    limit = torch.as_tensor(num_chosen, device=confidence.device).clamp_min(1)
    return is_masked & (rank < limit)


def static_count(num_masked: int, steps_left: int) -> int:
    """How many positions to unmask now so that `num_masked` are gone after `steps_left` equal steps."""
    return -(-num_masked // max(steps_left, 1))


def even_share(num_positions: int, steps: int, step: int) -> int:
    """How many of `num_positions` belong to step `step` of `steps`: equal shares, the first ones larger by one."""
    return num_positions // steps + (step % steps < num_positions % steps)


def dynamic_threshold(confidence: Tensor, is_masked: Tensor, threshold: float, num_least: int) -> Tensor:
    """Every masked position with a confidence above `threshold`, and the `num_least` most confident ones.

    The rule is SDAR's `low_confidence_dynamic`.
    """
    return (is_masked & (confidence > threshold)) | most_confident(confidence, is_masked, num_least)


def confidence_factor(confidence: Tensor, is_masked: Tensor, factor: float) -> Tensor:
    """The n most confident positions, for the largest n whose n-th best confidence is >= 1 - factor / (n + 1).

    The rule is Fast-dLLM's (arXiv 2505.22618).
    """
    ordered = confidence.masked_fill(~is_masked, -torch.inf).sort(dim=-1, descending=True).values
    n = torch.arange(1, confidence.shape[-1] + 1, device=confidence.device)
    passes = ordered >= 1 - factor / (n + 1)
    largest = torch.where(passes, n, 0).amax(-1, keepdim=True)
    return most_confident(confidence, is_masked, largest)


def entropy_bound(entropy: Tensor, is_masked: Tensor, bound: float) -> Tensor:
    """Positions in order of entropy, while the entropies before them sum to at most `bound` nats.

    The rule is that of the entropy-bounded sampler (arXiv 2505.24857).
    """
    cost = entropy.masked_fill(~is_masked, torch.inf)
    ordered, index = cost.sort(dim=-1)
    before = ordered.cumsum(-1) - ordered
    fits = (before <= bound) & ordered.isfinite()
    return torch.zeros_like(is_masked).scatter(-1, index, fits) & is_masked
