"""Layout of int4 weights for the CUDA kernels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quicksilver.backends.cuda.kernels.int4_packing import pack_words, quantise_to_words, unpack_words
from quicksilver.model.formats.int4 import GROUP_LEN, quantise_int4
from tests.support.int4_words import dequantise_int4, dequantise_words


def test_unpacking_inverts_packing() -> None:
    values = torch.randint(0, 16, (3, 96), dtype=torch.int32)
    words = pack_words(values)
    assert (words.shape, words.dtype) == ((3, 24), torch.int16)
    assert torch.equal(unpack_words(words), values)


def test_a_word_holds_every_eighth_weight_of_its_group_lowest_bits_first() -> None:
    values = torch.zeros(1, 64, dtype=torch.int32)
    values[0, [3, 11, 19, 27]] = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
    values[0, 32] = 5
    words = pack_words(values)
    assert words[0].nonzero().flatten().tolist() == [3, 8]
    assert words[0, [3, 8]].tolist() == [0x4321, 5]


def test_low_bits_of_a_word_are_fp16_subnormals() -> None:
    """As the kernels do: bits times a step stored times 2 ** 24; the next four bits times a sixteenth of it."""
    bits = torch.arange(16, dtype=torch.int16)
    step = torch.tensor(1.5, dtype=torch.float16)
    assert torch.equal(bits.view(torch.float16).double() * step.double() * 2**24, bits.double() * 1.5)
    assert torch.equal((bits << 4).view(torch.float16).double() * step.double() / 16 * 2**24, bits.double() * 1.5)


def mixed(outputs: int, depth: int) -> Tensor:
    return torch.randn(outputs, depth) * torch.logspace(-6, 1, outputs)[:, None]


@pytest.mark.parametrize(
    "w",
    [torch.randn(8, 256) / 50, mixed(8, 64), torch.full((2, 64), 5.0), torch.zeros(2, 64), torch.full((2, 64), 1e-20)],
    ids=["normal", "mixed magnitudes", "constant", "zero", "tiny"],
)
def test_dequantised_words_equal_quantise_int4(w: Tensor) -> None:
    wanted = dequantise_int4(*quantise_int4(w, GROUP_LEN))
    words, groups, scale = quantise_to_words(w)
    step = quantise_int4(w, GROUP_LEN)[1].float().repeat_interleave(GROUP_LEN, 1)
    assert ((dequantise_words(words, groups, scale) - wanted).abs() <= step / 100).all()
    assert (scale.log2() == scale.log2().round()).all(), "scales are powers of two, so that dividing by them is exact"
