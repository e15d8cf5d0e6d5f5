"""Layout of int4 weights for the CUDA kernels. Plain tensor operations, so that any machine can pack and unpack.

A weight is scale * (n * step + minimum): n in 0..15, a step and a minimum per 32 inputs (a group), a scale per output.
The four lowest bits of a 16-bit word, read as an fp16 subnormal, are n * 2**-24; the next four bits are n * 2**-20.
Steps are therefore stored times 2**24, and one fp16 fused multiply-add dequantises a weight."""

from __future__ import annotations

import torch
from torch import Tensor

from quicksilver.model.formats.int4 import GROUP_LEN, quantise_int4, unpack_nibbles

STEP_SHIFT = 24
# Times 2**24 it is half of the largest fp16 value.
_MAX_STEP = 2.0**-9
_MAX_MINIMUM = 64.0


def quantise_to_words(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise (out, in) with `quantise_int4` -> words (out, in / 4), groups (out, in / 32), scales (out,).

    Word j of a group holds weights j, j + 8, j + 16 and j + 24, lowest bits first. A group is 32 bits: the step in the
    lower half, the minimum in the upper half."""
    q, step, zero = quantise_int4(w, GROUP_LEN)
    step, minimum = step.float(), zero.float() - 8 * step.float()
    largest = torch.maximum(step.amax(1) / _MAX_STEP, minimum.abs().amax(1) / _MAX_MINIMUM)
    scale = torch.exp2(largest.log2().ceil())  # a power of two, so that steps stay exact
    halves = torch.stack((step * 2.0**STEP_SHIFT, minimum), -1) / scale[:, None, None]
    return pack_words(unpack_nibbles(q)), halves.half().view(torch.int32).squeeze(-1), scale


def pack_words(values: Tensor) -> Tensor:
    """(out, in) of 0..15 -> words."""
    nibbles = values.view(len(values), -1, 4, GROUP_LEN // 4).to(torch.int32) << _shifts(values.device)
    return nibbles.sum(2).flatten(1).to(torch.int16)


def unpack_words(words: Tensor) -> Tensor:
    """Words -> (out, in) int32 of 0..15."""
    wide = words.view(len(words), -1, 1, GROUP_LEN // 4).to(torch.int32)
    return (wide >> _shifts(words.device) & 15).flatten(1)


def _shifts(device: torch.device) -> Tensor:
    """Bit offsets of the four weights of a word."""
    return torch.arange(0, 16, 4, device=device).view(4, 1)
