"""The commit rules, against plain loops, on random canvases."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quicksilver.diffusion import unmask

Array = npt.NDArray[Any]
# Distinct and exact in float32, so that plain loops and tensors compare the same numbers.
confidences = st.lists(st.integers(1, 1023).map(lambda n: n / 1024), min_size=1, max_size=12, unique=True)


@st.composite
def canvases(draw: st.DrawFn) -> tuple[Array, Array]:
    values = draw(confidences)
    masked = draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    return np.array(values, np.float32), np.array(masked)


def check_subset(chosen: Array, is_masked: Array) -> None:
    assert not bool((chosen & ~is_masked).any())
    assert bool(chosen.any()) == bool(is_masked.any())


@given(canvases(), st.integers(0, 1024).map(lambda n: n / 1024))
def test_threshold_takes_all_that_pass_or_the_best(canvas: tuple[Array, Array], threshold: float) -> None:
    confidence, is_masked = canvas
    chosen = unmask.confidence_threshold(confidence, is_masked, threshold)
    check_subset(chosen, is_masked)
    passing = {i for i, c in enumerate(confidence.tolist()) if is_masked[i] and c > threshold}
    if passing:
        assert set(chosen.nonzero()[0].tolist()) == passing


@given(canvases(), st.integers(1, 14))
def test_count_takes_the_most_confident(canvas: tuple[Array, Array], count: int) -> None:
    confidence, is_masked = canvas
    chosen = unmask.most_confident(confidence, is_masked, count)
    order = sorted((i for i in range(len(confidence)) if is_masked[i]), key=lambda i: -confidence[i].item())
    assert set(chosen.nonzero()[0].tolist()) == set(order[:count])


@given(canvases(), st.floats(0.1, 4.0))
def test_factor_takes_the_largest_count_that_passes(canvas: tuple[Array, Array], factor: float) -> None:
    confidence, is_masked = canvas
    chosen = unmask.confidence_factor(confidence, is_masked, factor)
    check_subset(chosen, is_masked)
    ordered = sorted((c for c, m in zip(confidence.tolist(), is_masked.tolist(), strict=True) if m), reverse=True)
    best = max((n for n, c in enumerate(ordered, 1) if c >= 1 - factor / (n + 1)), default=1)
    assert int(chosen.sum()) == min(best, len(ordered))


@given(canvases(), st.floats(0.0, 3.0))
def test_entropy_takes_the_lowest_within_the_bound(canvas: tuple[Array, Array], bound: float) -> None:
    entropy, is_masked = canvas
    chosen = unmask.entropy_bound(entropy, is_masked, bound)
    check_subset(chosen, is_masked)
    taken, total = 0, 0.0
    for value in sorted(e for e, m in zip(entropy.tolist(), is_masked.tolist(), strict=True) if m):
        if total > bound + 1e-6:
            break
        taken, total = taken + 1, total + value
    assert abs(int(chosen.sum()) - taken) <= (1 if abs(total - bound) < 1e-3 else 0)


def test_rules_work_on_batches_row_by_row() -> None:
    rng = np.random.default_rng(0)
    confidence, is_masked = rng.random((5, 8), np.float32), rng.random((5, 8)) > 0.4
    for rule in (
        lambda c, m: unmask.confidence_threshold(c, m, 0.6),
        lambda c, m: unmask.most_confident(c, m, 2),
        lambda c, m: unmask.confidence_factor(c, m, 1.0),
        lambda c, m: unmask.entropy_bound(c, m, 0.5),
    ):
        together = rule(confidence, is_masked)
        alone = np.stack([rule(c, m) for c, m in zip(confidence, is_masked, strict=True)])
        assert np.array_equal(together, alone)


@pytest.mark.parametrize(("masked", "steps", "taken"), [(10, 3, [4, 3, 3]), (4, 8, [1, 1, 1, 1]), (6, 1, [6])])
def test_static_counts_spread_over_the_steps(masked: int, steps: int, taken: list[int]) -> None:
    counts = []
    while masked:
        counts.append(unmask.static_count(masked, steps))
        masked, steps = masked - counts[-1], steps - 1
    assert counts == taken


def test_the_dynamic_rule_takes_an_even_share_at_least() -> None:
    confidence, is_masked = np.array([0.9, 0.2, 0.3, 0.8, 0.95]), np.array([True, True, True, True, False])
    assert unmask.dynamic_threshold(confidence, is_masked, 0.7, 1).tolist() == [True, False, False, True, False]
    assert unmask.dynamic_threshold(confidence, is_masked, 0.85, 2).tolist() == [True, False, False, True, False]
    assert unmask.dynamic_threshold(confidence, is_masked, 0.85, 3).tolist() == [True, False, True, True, False]
    assert unmask.dynamic_threshold(confidence, is_masked, 0.85, 9).tolist() == is_masked.tolist()
    assert [unmask.even_share(8, 3, step) for step in range(4)] == [3, 3, 2, 3]
    assert [unmask.even_share(4, 8, step) for step in range(5)] == [1, 1, 1, 1, 0]
