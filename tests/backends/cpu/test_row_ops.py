"""Operations on one row equal torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quicksilver.backends.cpu.support import unsupported_reason

if unsupported_reason() is not None:
    pytest.skip(f"compiled CPU backend: {unsupported_reason()}", allow_module_level=True)

from quicksilver.backends.cpu.row_ops import (
    empty_quantised,
    norm_row,
    padded_len,
    quantise_row,
    rotate_head,
    swiglu_row,
)
from quicksilver.model.formats.int8 import quantise_int8_groups
from quicksilver.model.transformer import rotate


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_quantised_rows_equal_the_rounding_of_weights_and_carry_their_sums() -> None:
    x, out = random(128), empty_quantised(2, 128)
    x[70] = 9.0
    quantise_row(x, out, 1)
    q, scale = quantise_int8_groups(torch.from_numpy(x)[None], 64)
    assert np.array_equal(out.values[1], q[0].numpy())
    assert np.allclose(out.scales[1], scale[0].numpy(), rtol=1e-6)
    sums = q[0].view(2, 64).sum(1, dtype=torch.int32)
    assert out.offsets[1].tolist() == (-128 * sums).tolist()
    halves = q[0].view(4, 32).sum(1).float() * scale[0].repeat_interleave(2)
    assert np.allclose(out.sums[1], halves.numpy(), rtol=1e-5, atol=1e-6)
    assert not out.values[0].any(), "the other row is untouched"


def test_a_group_of_zeros_has_scale_zero_and_nan_makes_the_scale_nan() -> None:
    x, out = np.zeros(128, np.float32), empty_quantised(1, 128)
    x[100] = np.nan
    quantise_row(x, out, 0)
    assert out.scales[0, 0] == 0
    assert not out.values[0, :64].any()
    assert np.isnan(out.scales[0, 1])


@pytest.mark.parametrize(("width", "padded"), [(1, 64), (64, 64), (65, 128), (576, 576)])
def test_widths_are_padded_to_whole_groups(width: int, padded: int) -> None:
    assert padded_len(width) == padded


def test_rms_norm_equals_torchs() -> None:
    x, gain, out = random(96), random(96) + 1, np.zeros(96, np.float32)
    norm_row(x, gain, 1e-5, out)
    wanted = torch.nn.functional.rms_norm(torch.from_numpy(x), (96,), torch.from_numpy(gain), 1e-5)
    assert np.allclose(out, wanted.numpy(), rtol=1e-5, atol=1e-6)


def test_swiglu_equals_torchs() -> None:
    y, out = random(64) * 4, np.zeros(32, np.float32)
    swiglu_row(y, 32, out)
    gate, up = torch.from_numpy(y).chunk(2)
    assert np.allclose(out, (torch.nn.functional.silu(gate) * up).numpy(), rtol=1e-5, atol=1e-6)


def test_rotation_equals_torchs() -> None:
    x, angles = random(32), np.tile(random(16), 2)
    cos, sin = np.cos(angles), np.sin(angles)
    wanted = rotate(torch.from_numpy(x)[None, None].clone(), (torch.from_numpy(cos), torch.from_numpy(sin)))
    rotate_head(x, cos, sin)
    assert np.allclose(x, wanted[0, 0].numpy(), rtol=1e-5, atol=1e-6)
