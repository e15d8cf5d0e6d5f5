"""Reference dequantisation of int4 weights, packed for the kernels or not. Needs no Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from quicksilver.backends.cuda.kernels.int4_packing import STEP_SHIFT, unpack_words
from quicksilver.model.formats.int4 import GROUP_LEN, unpack_nibbles


def dequantise_words(words: Tensor, groups: Tensor, scale: Tensor) -> Tensor:
    """Dequantise to fp32 (out, in)."""
    step, minimum = groups.unsqueeze(-1).view(torch.float16).float().unbind(-1)
    values = unpack_words(words).unflatten(1, (-1, GROUP_LEN)) * (step * 2.0**-STEP_SHIFT)[..., None]
    return ((values + minimum[..., None]) * scale[:, None, None]).flatten(1)


def dequantise_int4(q: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """The fp32 weights of `quantise_int4`'s result."""
    values = unpack_nibbles(q).unflatten(1, (scale.shape[1], -1)).float() - 8
    return (values * scale.float()[..., None] + zero.float()[..., None]).flatten(1)
