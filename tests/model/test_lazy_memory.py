"""Zeros that are taken when they are written."""

from __future__ import annotations

import pytest
import torch

from quicksilver.model.lazy_memory import zero_bytes


@pytest.mark.parametrize("num_bytes", [0, 1, 4096, (4 << 20) - 1, 4 << 20, (5 << 20) + 64])
def test_small_and_large_buffers_are_zero_and_writable(num_bytes: int) -> None:
    buffer = zero_bytes(num_bytes)
    assert buffer.shape == (num_bytes,)
    assert buffer.dtype is torch.uint8
    assert not buffer.any()
    buffer.fill_(7)
    assert int(buffer.sum()) == 7 * num_bytes


def test_a_view_keeps_the_memory() -> None:
    view = zero_bytes(8 << 20)[-64:].view(torch.float32)
    view += 1
    assert view.tolist() == [1.0] * 16
