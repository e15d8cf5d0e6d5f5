"""Weights of four bits as the GPU's kernels hold them. Tensors only, so that any machine can make and read them.

A weight is scale * (n * step + least): n in 0..15, a step and a least value for every 32 along the input, a scale for
each output. Four bits low in a word of 16 are a number of fp16 as they stand, n * 2**-24, and four bits further up
n * 2**-20. So steps are kept times 2**24, and one multiply-add of fp16 makes a weight of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quicksilver.model.formats.int4 import GROUP_LEN, quantise_int4, unpack_nibbles

STEP_SHIFT = 24
_WIDEST_STEP = 2.0**-9
"""Shifted up it is half of the largest number in fp16."""
_MOST_LEAST = 64.0


def to_words(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(out, in) -> words (out, in / 4), groups (out, in / 32), scales (out,), of `quantise_int4`'s steps.

    Word j of a group has weights j, j + 8, j + 16 and j + 24, the first lowest. A group is a word of 32 bits: the step
    in its lower half, the least value in its upper."""
    q, step, zero = quantise_int4(w, GROUP_LEN)
    step, least = step.float(), zero.float() - 8 * step.float()
    largest = torch.maximum(step.amax(1) / _WIDEST_STEP, least.abs().amax(1) / _MOST_LEAST)
    scale = torch.exp2(largest.log2().ceil())  # of which the steps keep all bits
    halves = torch.stack((step * 2.0**STEP_SHIFT, least), -1) / scale[:, None, None]
    return pack_words(unpack_nibbles(q)), halves.half().view(torch.int32).squeeze(-1), scale


def pack_words(values: Tensor) -> Tensor:
    """(out, in) of 0..15 -> words."""
    fours = values.view(len(values), -1, 4, GROUP_LEN // 4).to(torch.int32) << _shifts(values.device)
    return fours.sum(2).flatten(1).to(torch.int16)


def unpack_words(words: Tensor) -> Tensor:
    """Words -> (out, in) int32 of 0..15."""
    wide = words.view(len(words), -1, 1, GROUP_LEN // 4).to(torch.int32)
    return (wide >> _shifts(words.device) & 15).flatten(1)


def _shifts(device: torch.device) -> Tensor:
    """Where the four weights of a word lie."""
    return torch.arange(0, 16, 4, device=device).view(4, 1)


def from_words(words: Tensor, groups: Tensor, scale: Tensor) -> Tensor:
    """The weights, fp32 (out, in)."""
    step, least = groups.unsqueeze(-1).view(torch.float16).float().unbind(-1)
    values = unpack_words(words).unflatten(1, (-1, GROUP_LEN)) * (step * 2.0**-STEP_SHIFT)[..., None]
    return ((values + least[..., None]) * scale[:, None, None]).flatten(1)
