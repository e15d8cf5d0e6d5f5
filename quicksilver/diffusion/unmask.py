"""Commit rules: which masked positions are decided, as pure functions over the last dimension.

Each rule takes the confidence (or entropy) of all positions and which are masked. It returns a boolean choice: a subset
of the masked positions that is empty only if nothing is masked. Leading dimensions are batch dimensions. A count may be
a number, or an array with one entry per row of the batch and a last dimension of 1.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Count = TypeVar("Count", int, npt.NDArray[np.int64])


def confidence_threshold(confidence: Values, is_masked: Mask, threshold: float) -> Mask:
    """Every masked position with a confidence above `threshold`, and always the most confident one."""
    best = np.where(is_masked, confidence, -np.inf).argmax(-1)
    is_best = np.arange(confidence.shape[-1]) == best[..., None]
    return is_masked & ((confidence > threshold) | is_best)


def most_confident(confidence: Values, is_masked: Mask, num_chosen: npt.NDArray[np.int64] | int) -> Mask:
    """The `num_chosen` most confident masked positions, at least one. Ties go to the left."""
    order = np.where(is_masked, -confidence, np.inf).argsort(-1, kind="stable")
    rank = order.argsort(-1)
    return is_masked & (rank < np.maximum(num_chosen, 1))


def static_count(num_masked: Count, steps_left: Count) -> Count:
    """How many positions to unmask now so that `num_masked` are gone after `steps_left` equal steps, at least one."""
    return -(-num_masked // steps_left)


def even_share(num_positions: Count, steps: int, step: Count) -> Count:
    """How many of `num_positions` belong to step `step` of `steps`: equal shares, the first ones larger by one."""
    return num_positions // steps + (step % steps < num_positions % steps)


def dynamic_threshold(
    confidence: Values, is_masked: Mask, threshold: float, num_least: npt.NDArray[np.int64] | int
) -> Mask:
    """Every masked position with a confidence above `threshold`, and the `num_least` most confident ones.

    The rule is SDAR's `low_confidence_dynamic`.
    """
    return (is_masked & (confidence > threshold)) | most_confident(confidence, is_masked, num_least)


def confidence_factor(confidence: Values, is_masked: Mask, factor: float) -> Mask:
    """The n most confident positions, for the largest n whose n-th best confidence is >= 1 - factor / (n + 1).

    The rule is Fast-dLLM's (arXiv 2505.22618).
    """
    ordered = -np.sort(np.where(is_masked, -confidence, np.inf), -1)
    n = np.arange(1, confidence.shape[-1] + 1)
    largest = np.where(ordered >= 1 - factor / (n + 1), n, 0).max(-1, keepdims=True)
    return most_confident(confidence, is_masked, largest)


def entropy_bound(entropy: Values, is_masked: Mask, bound: float) -> Mask:
    """Positions in order of entropy, while the entropies before them sum to at most `bound` nats.

    The rule is that of the entropy-bounded sampler (arXiv 2505.24857).
    """
    order = np.where(is_masked, entropy, np.inf).argsort(-1, kind="stable")
    ordered = np.take_along_axis(np.where(is_masked, entropy, 0), order, -1)
    fits = np.zeros_like(is_masked)
    np.put_along_axis(fits, order, ordered.cumsum(-1) - ordered <= bound, -1)
    return fits & is_masked
