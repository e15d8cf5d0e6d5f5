"""The packed linear: correct up to rounding, batch-invariant, and NaN stays in its row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quicksilver.backends.cpu.support import unsupported_reason
from quicksilver.model.formats.int8 import quantise_int8_groups

if unsupported_reason() is not None:
    pytest.skip(f"compiled CPU backend: {unsupported_reason()}", allow_module_level=True)

from quicksilver.backends.cpu.linear import Int8Embedding, PackedLinear
from quicksilver.backends.cpu.quantise import quantise_linear
from tests.backends.cpu.build import random_int4_linear


def quantised(x: Tensor) -> Tensor:
    """Activations after rounding, in float64."""
    q, scale = quantise_int8_groups(x, 64)
    return (q.float() * scale.repeat_interleave(64, 1)[:, : q.shape[1]]).double()


@pytest.mark.parametrize(("out_dim", "in_dim"), [(64, 64), (100, 130), (17, 5), (192, 576), (64, 3200)])
def test_int8_equals_the_product_of_the_rounded_numbers(out_dim: int, in_dim: int) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(out_dim, in_dim), torch.randn(7, in_dim) * 3
    wanted = quantised(x) @ quantised(weight).T
    torch.testing.assert_close(quantise_linear(weight)(x).double(), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("out_dim", "in_dim"), [(64, 64), (100, 160), (17, 32), (192, 576), (64, 3200)])
def test_int4_equals_the_product_of_the_rounded_rows(out_dim: int, in_dim: int) -> None:
    torch.manual_seed(0)
    product, weight = random_int4_linear(out_dim, in_dim)
    assert product.bits == 4
    for num_rows in (1, 7, 16):
        x = torch.randn(num_rows, in_dim) * 3
        wanted = quantised(x) @ weight.double().T
        torch.testing.assert_close(product(x).double(), wanted, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_has_the_same_bits_in_any_number_of_rows(bits: int) -> None:
    torch.manual_seed(1)
    product = quantise_linear(torch.randn(128, 1728)) if bits == 8 else random_int4_linear(128, 1728)[0]
    x = torch.randn(23, 1728)
    whole = product(x)
    for num_rows in range(1, 23):
        assert torch.equal(product(x[:num_rows]), whole[:num_rows])
        assert torch.equal(product(x[num_rows:]), whole[num_rows:])


def test_zero_rows_and_rows_of_zeros() -> None:
    product = quantise_linear(torch.randn(64, 64))
    assert product(torch.zeros(0, 64)).shape == (0, 64)
    assert torch.equal(product(torch.zeros(3, 64)), torch.zeros(3, 64))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_affect_only_their_row(bad: float) -> None:
    product, x = quantise_linear(torch.randn(64, 128)), torch.randn(5, 128)
    good = product(x)
    x[2, 70] = bad
    found = product(x)
    assert not found[2].isfinite().any()
    assert torch.equal(found[[0, 1, 3, 4]], good[[0, 1, 3, 4]])


def test_bias_is_added() -> None:
    weight, bias, x = torch.randn(64, 64), torch.randn(64), torch.randn(2, 64)
    plain = quantise_linear(weight)
    assert torch.equal(PackedLinear(plain.packed, plain.scales, bias, (64, 64))(x), plain(x) + bias)


def test_embeddings_are_looked_up_in_the_given_dtype() -> None:
    table = Int8Embedding(torch.tensor([[1, -2], [127, 0]], dtype=torch.int8), torch.tensor([0.5, 2.0]), torch.float32)
    assert table(torch.tensor([1, 0, 1])).tolist() == [[254.0, 0.0], [0.5, -1.0], [254.0, 0.0]]
