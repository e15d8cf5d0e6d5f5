"""int4 rounding: 16 even steps per group of inputs, with a bf16 scale and zero point; and two values per byte.

Values are rounded against the scale and zero point as stored (in bf16), so the stored bits are what is computed.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Inputs per group.
GROUP_LEN = 32


def quantise_int4(weight: Tensor, group_len: int) -> tuple[Tensor, Tensor, Tensor]:
    """(rows, cols) -> q uint8 (rows, cols / 2), scale and zero bf16 (rows, cols / group_len).

    weight = (n - 8) * scale + zero with n in 0 … 15. A group's smallest value becomes 0 and its largest 15. Weights
    that already lie on 16 even steps are unchanged.
    """
    groups = weight.detach().float().unflatten(1, (-1, group_len))
    lowest, highest = groups.amin(2), groups.amax(2)
    scale = ((highest - lowest) / 15).clamp(min=torch.finfo(torch.bfloat16).tiny).bfloat16()
    zero = (lowest + 8 * scale.float()).bfloat16()
    steps = (groups - zero.float()[..., None]) / scale.float()[..., None] + 8
    return pack_nibbles(steps.round().clamp(0, 15).flatten(1).to(torch.uint8)), scale, zero


def pack_nibbles(values: Tensor) -> Tensor:
    """(rows, cols) of 0 … 15 -> (rows, cols / 2) bytes, the even column in the low nibble."""
    return values[:, ::2] | (values[:, 1::2] << 4)


def unpack_nibbles(q: Tensor) -> Tensor:
    """Bytes -> (rows, cols) int32 of 0 … 15."""
    return torch.stack((q & 15, q >> 4), dim=2).flatten(1).to(torch.int32)
