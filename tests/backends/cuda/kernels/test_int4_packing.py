"""Weights of four bits as a GPU's kernels hold them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quicksilver.backends.cuda.kernels.int4_packing import from_words, pack_words, to_words, unpack_words
from quicksilver.model.formats.int4 import GROUP_LEN, dequantise_int4, quantise_int4


def test_words_give_back_what_they_were_made_of() -> None:
    values = torch.randint(0, 16, (3, 96), dtype=torch.int32)
    words = pack_words(values)
    assert (words.shape, words.dtype) == ((3, 24), torch.int16)
    assert torch.equal(unpack_words(words), values)


def test_a_word_has_every_eighth_weight_of_its_group_the_first_lowest() -> None:
    values = torch.zeros(1, 64, dtype=torch.int32)
    values[0, [3, 11, 19, 27]] = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
    values[0, 32] = 5
    words = pack_words(values)
    assert words[0].nonzero().flatten().tolist() == [3, 8]
    assert words[0, [3, 8]].tolist() == [0x4321, 5]


def test_low_bits_of_a_word_are_numbers_of_fp16_as_they_stand() -> None:
    """What the kernels do: bits times a step that is kept times 2 ** 24, and four bits further up times a sixteenth."""
    bits = torch.arange(16, dtype=torch.int16)
    step = torch.tensor(1.5, dtype=torch.float16)
    assert torch.equal(bits.view(torch.float16).double() * step.double() * 2**24, bits.double() * 1.5)
    assert torch.equal((bits << 4).view(torch.float16).double() * step.double() / 16 * 2**24, bits.double() * 1.5)


def mixed(outputs: int, depth: int) -> Tensor:
    return torch.randn(outputs, depth) * torch.logspace(-6, 1, outputs)[:, None]


@pytest.mark.parametrize(
    "w",
    [torch.randn(8, 256) / 50, mixed(8, 64), torch.full((2, 64), 5.0), torch.zeros(2, 64), torch.full((2, 64), 1e-20)],
    ids=["usual", "of many sizes", "constant", "zero", "tiny"],
)
def test_weights_are_those_of_every_other_int4(w: Tensor) -> None:
    wanted = dequantise_int4(*quantise_int4(w, GROUP_LEN))
    words, groups, scale = to_words(w)
    step = quantise_int4(w, GROUP_LEN)[1].float().repeat_interleave(GROUP_LEN, 1)
    assert ((from_words(words, groups, scale) - wanted).abs() <= step / 100).all()
    assert (scale.log2() == scale.log2().round()).all(), "powers of two, so that dividing by them loses nothing"
