"""The arithmetic of the stored weight formats: float tensors to few bits and back. Pure functions of tensors.

int8: one scale per output row, or one per group of a row. int4: two values a byte along the input, low nibble first,
with a scale and a zero per group. Values are rounded against the scales as stored, so what is written is exactly what
is computed.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

GROUP_LEN = 32
"""Of int4."""
_CHUNK = 1 << 22
"""Numbers rounded at a time, so that the float copies on the way stay small beside the weight."""


def quantise_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, cols) -> q int8 and scale fp32 (rows,), symmetric: the largest value of a row becomes 127."""
    weight = weight.detach()
    q = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scale = torch.empty(len(weight), device=weight.device)
    num_rows = max(_CHUNK // max(weight.shape[1], 1), 1)
    for start in range(0, len(weight), num_rows):
        part = slice(start, start + num_rows)
        wide = weight[part].float()
        scale[part] = wide.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny * 128) / 127
        q[part] = (wide / scale[part, None]).round_().clamp_(-127, 127)
    return q, scale


def quantise_int8_grouped(weight: Tensor, group_len: int) -> tuple[Tensor, Tensor]:
    """(rows, cols) -> q int8 and scale fp32 (rows, groups); the last group of a row may be short."""
    rows, cols = weight.shape
    whole = pad(weight.detach(), (0, -cols % group_len)) if cols % group_len else weight.detach()
    q, scale = quantise_int8(whole.reshape(-1, group_len))
    return q.view(rows, -1)[:, :cols].contiguous(), scale.view(rows, -1)


def dequantise_int8_grouped(q: Tensor, scale: Tensor, group_len: int) -> Tensor:
    return q.float() * scale.repeat_interleave(group_len, 1)[:, : q.shape[1]]


def dequantise_int8(q: Tensor, scale: Tensor) -> Tensor:
    return q.float() * scale[:, None]


def quantise_int4(weight: Tensor, group_len: int) -> tuple[Tensor, Tensor, Tensor]:
    """(rows, cols) -> q uint8 (rows, cols / 2), scale and zero bf16 (rows, cols / group_len).

    A group's least value becomes 0 and its largest 15; weights that already lie on 16 even steps survive unchanged.
    """
    groups = weight.detach().float().unflatten(1, (-1, group_len))
    least, most = groups.amin(2), groups.amax(2)
    scale = ((most - least) / 15).clamp(min=torch.finfo(torch.bfloat16).tiny).bfloat16()
    zero = (least + 8 * scale.float()).bfloat16()
    steps = (groups - zero.float()[..., None]) / scale.float()[..., None] + 8
    return pack_nibbles(steps.round().clamp(0, 15).flatten(1).to(torch.uint8)), scale, zero


def dequantise_int4(q: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    values = unpack_nibbles(q).unflatten(1, (scale.shape[1], -1)).float() - 8
    return (values * scale.float()[..., None] + zero.float()[..., None]).flatten(1)


def pack_nibbles(values: Tensor) -> Tensor:
    """(rows, cols) of 0..15 -> (rows, cols / 2) bytes, the even column in the low nibble."""
    return values[:, ::2] | (values[:, 1::2] << 4)


def unpack_nibbles(q: Tensor) -> Tensor:
    """Bytes -> (rows, cols) int32 of 0..15."""
    return torch.stack((q & 15, q >> 4), dim=2).flatten(1).to(torch.int32)
