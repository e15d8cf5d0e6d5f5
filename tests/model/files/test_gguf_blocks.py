"""Grids of 4-bit blocks: values dequantised by the gguf package lie on them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from quicksilver.model.files.gguf_blocks import read_grid
from tests.model.build import stored_tensor


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
def test_values_are_16_even_steps_from_the_minimum(kind: str) -> None:
    ggml_type = gguf.GGMLQuantizationType[kind]
    stored = stored_tensor(np.random.default_rng(0), (3, 512), ggml_type)
    grid = read_grid(stored.reshape(3, -1), kind)
    assert grid is not None
    scale, minimum = (part[:, :, None] for part in grid)
    assert scale.shape == (3, 512 // 32, 1)
    values = torch.from_numpy(gguf.quants.dequantize(stored, ggml_type).reshape(3, 16, 32))
    steps = (values - minimum) / torch.where(scale == 0, 1, scale)
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=2e-3)
    assert float(steps.min()) > -0.01
    assert float(steps.max()) < 15.01


@pytest.mark.parametrize("kind", ["Q6_K", "Q8_0", "F16"])
def test_formats_with_more_bits_have_no_grid(kind: str) -> None:
    assert read_grid(np.zeros((1, 420), np.uint8), kind) is None
