"""Loss weights of canvas rows, and learning-rate schedules."""

from __future__ import annotations

import pytest
import torch

from quicksilver.training.schedule import cosine_decay, index_weight, linear_decay


def test_weights_fall_with_the_distance_to_a_floor() -> None:
    weights = index_weight(torch.tensor([0, 8, 800]), decay=8.0)
    assert weights.tolist() == pytest.approx([1.05, 0.4178794, 0.05])


@pytest.mark.parametrize("decay", [linear_decay, cosine_decay])
def test_decays_go_from_one_to_zero_and_are_clamped(decay: object) -> None:
    values = [decay(progress) for progress in (-1.0, 0.0, 0.5, 1.0, 2.0)]  # type: ignore[operator]
    assert values == pytest.approx([1.0, 1.0, 0.5, 0.0, 0.0])
