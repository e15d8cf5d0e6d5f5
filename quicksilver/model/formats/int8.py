"""int8 rounding: symmetric, with one fp32 scale per row or per group of a row. The largest magnitude becomes 127."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

# Values rounded at a time. It bounds the fp32 copies to 16 MiB each.
_CHUNK = 1 << 22


def quantise_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, cols) -> q int8 (rows, cols) and scale fp32 (rows,), with weight = q * scale."""
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


def quantise_int8_groups(weight: Tensor, group_len: int) -> tuple[Tensor, Tensor]:
    """(rows, cols) -> q int8 (rows, cols) and scale fp32 (rows, groups); the last group of a row may be short."""
    rows, cols = weight.shape
    whole = pad(weight.detach(), (0, -cols % group_len)) if cols % group_len else weight.detach()
    q, scale = quantise_int8(whole.reshape(-1, group_len))
    return q.view(rows, -1)[:, :cols].contiguous(), scale.view(rows, -1)
