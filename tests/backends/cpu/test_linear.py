"""The packed product: right to rounding, the same bits in any company, and not-a-number stays in its row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from quicksilver.backends.cpu.support import has_vnni, refusal
from quicksilver.model.formats.int8 import quantise_int8_groups

if refusal() is not None:
    pytest.skip(f"compiled loops: {refusal()}", allow_module_level=True)

from quicksilver.backends.cpu.int8_dot import dot_avx2, dot_vnni
from quicksilver.backends.cpu.intrinsics import address_of, exp32
from quicksilver.backends.cpu.jit import inner
from quicksilver.backends.cpu.linear import PackedLinear
from quicksilver.backends.cpu.matmul import aligned, pack, pack_nibbles
from quicksilver.backends.cpu.matmul_tile import make_tile
from quicksilver.backends.cpu.quantise import quantise_linear
from quicksilver.backends.cpu.row_ops import empty_rounded, round_row


def rounded(x: Tensor) -> Tensor:
    """What activations are after rounding, in float64."""
    q, scale = quantise_int8_groups(x, 64)
    return (q.float() * scale.repeat_interleave(64, 1)[:, : q.shape[1]]).double()


def four_bits(out_dim: int, in_dim: int) -> tuple[PackedLinear, Tensor]:
    """A linear of weights in four bits, and these weights."""
    q = torch.randint(0, 16, (out_dim, in_dim), dtype=torch.uint8)
    scale, least = (torch.randn(out_dim, in_dim // 32).half().float() for _ in range(2))
    weight = q * scale.repeat_interleave(32, 1) + least.repeat_interleave(32, 1)
    return PackedLinear(*pack_nibbles(q, scale, least), None, (out_dim, in_dim)), weight


@pytest.mark.parametrize(("out_dim", "in_dim"), [(64, 64), (100, 130), (17, 5), (192, 576), (64, 3200)])
def test_product_equals_that_of_the_rounded_numbers(out_dim: int, in_dim: int) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(out_dim, in_dim), torch.randn(7, in_dim) * 3
    wanted = rounded(x) @ rounded(weight).T
    torch.testing.assert_close(quantise_linear(weight)(x).double(), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("out_dim", "in_dim"), [(64, 64), (100, 160), (17, 32), (192, 576), (64, 3200)])
def test_product_of_weights_in_four_bits_equals_that_of_the_rounded_rows(out_dim: int, in_dim: int) -> None:
    torch.manual_seed(0)
    product, weight = four_bits(out_dim, in_dim)
    assert product.bits == 4
    for num_rows in (1, 7, 16):
        x = torch.randn(num_rows, in_dim) * 3
        wanted = rounded(x) @ weight.double().T
        torch.testing.assert_close(product(x).double(), wanted, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_has_the_same_bits_in_any_number_of_rows(bits: int) -> None:
    torch.manual_seed(1)
    product = quantise_linear(torch.randn(128, 1728)) if bits == 8 else four_bits(128, 1728)[0]
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
def test_what_is_not_finite_spoils_its_own_row_only(bad: float) -> None:
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


def test_large_matrices_lie_at_a_multiple_of_a_cache_line_as_small_ones_do() -> None:
    for num_bytes in (1000, 9 << 20):
        room = aligned((num_bytes,), torch.uint8).fill_(7)
        assert room.data_ptr() % 64 == 0
        assert int(room[-1]) == 7


@pytest.mark.skipif(not has_vnni(), reason="compares with AVX-512 VNNI")
@pytest.mark.parametrize("bits", [8, 4])
def test_cpus_without_the_byte_instruction_get_the_same_bits(bits: int) -> None:
    narrow, wide = make_tile(2, 1, dot_avx2, bits), make_tile(2, 1, dot_vnni, bits)

    @inner
    def run(rows, source, y, weights, ahead):  # type: ignore[no-untyped-def]
        narrow(address_of(rows), source, (address_of(y), 4 * y.shape[1]), weights, (0, 3, 3), 0, ahead)
        wide(address_of(rows), source, (address_of(y) + 64, 4 * y.shape[1]), weights, (0, 3, 3), 0, ahead)

    bytes_of = pack(*quantise_int8_groups(torch.randn(16, 192), 64))
    nibbles = four_bits(16, 192)[0]
    packed, scales = bytes_of if bits == 8 else (nibbles.packed, nibbles.scales)
    x = empty_rounded(2, 192)
    for row in range(2):
        round_row(np.random.default_rng(row).standard_normal(192).astype(np.float32), x, row)
    source = (x.values.ctypes.data, 192, x.scales.ctypes.data, 12, x.offsets.ctypes.data, x.sums.ctypes.data)
    y = np.zeros((2, 32), np.float32)
    run(np.arange(2), source, y, (packed.data_ptr(), scales.data_ptr()), (packed.data_ptr(),))
    assert np.abs(y).min() > 0
    assert np.array_equal(y[:, :16], y[:, 16:])


def test_exp_is_right_to_a_few_ulp_and_keeps_not_a_number() -> None:
    @inner
    def run(x, out):  # type: ignore[no-untyped-def]
        for i in range(len(x)):
            out[i] = exp32(x[i])

    x = np.linspace(-87, 88, 40001).astype(np.float32)
    out = np.zeros_like(x)
    run(x, out)
    assert np.allclose(out, np.exp(x.astype(np.float64)), rtol=3e-7)
    run(np.array([np.nan, -np.inf, 0], np.float32), out)
    assert np.isnan(out[0])
    assert 0 <= out[1] < 1e-37
    assert out[2] == 1
