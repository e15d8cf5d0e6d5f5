"""Rotary embedding: a rotation that depends on distances, in fp32 for any model dtype."""

from __future__ import annotations

import torch

from quicksilver.model.rope import Rope, rotate
from tests.model.build import small_config


def test_position_zero_changes_nothing_and_lengths_are_kept() -> None:
    rope, x = Rope(small_config()), torch.randn(5, 3, 16)
    turned = rotate(x, rope(torch.tensor([0, 1, 2, 50, 255])))
    assert torch.equal(turned[0], x[0])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


def test_scores_depend_on_distance_alone() -> None:
    rope, q, k = Rope(small_config()), torch.randn(1, 1, 16), torch.randn(1, 1, 16)

    def score(q_at: int, k_at: int) -> torch.Tensor:
        return (rotate(q, rope(torch.tensor([q_at]))) * rotate(k, rope(torch.tensor([k_at])))).sum()

    torch.testing.assert_close(score(7, 3), score(104, 100), rtol=1e-4, atol=1e-4)
    assert abs(float(score(7, 3) - score(8, 3))) > 1e-4


def test_frequencies_stay_fp32_when_the_model_is_cast() -> None:
    rope = Rope(small_config()).to(torch.bfloat16)
    cos, sin = rope(torch.tensor([1000]))
    assert {rope.inv_freq.dtype, cos.dtype, sin.dtype} == {torch.float32}
    assert rotate(torch.ones(1, 1, 16, dtype=torch.bfloat16), (cos, sin)).dtype == torch.bfloat16
