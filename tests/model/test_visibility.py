"""Attention masks and their padding."""

from __future__ import annotations

import pytest
import torch

from quicksilver.model.visibility import Visibility, padded_keys


def test_padded_keys_hold_the_keys_and_never_shrink() -> None:
    sizes = [padded_keys(n) for n in range(1, 3000)]
    assert all(size >= n for n, size in enumerate(sizes, start=1))
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("num_rows", [1, 3, 64, 70])
def test_masked_attention_equals_softmax_over_the_visible_keys(num_rows: int) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(num_rows, 4, 8), torch.randn(50, 2, 8), torch.randn(50, 2, 8)
    visible = torch.rand(num_rows, 50) > 0.5
    visible[:, 0] = True
    mask = Visibility(visible)
    padding = (0, 0, 0, 0, 0, mask.num_keys - 50)
    found = mask.attend(q, torch.nn.functional.pad(k, padding), torch.nn.functional.pad(v, padding))
    for head in range(4):
        scores = (q[:, head] @ k[:, head // 2].T / 8**0.5).masked_fill(~visible, float("-inf"))
        torch.testing.assert_close(found[:, head], scores.softmax(-1) @ v[:, head // 2], rtol=1e-4, atol=1e-5)
