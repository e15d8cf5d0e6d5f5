"""Weights of four bits where rows are many: rounded at load, and made wide again for the library's products.

A weight is (n - 8) * scale + zero, n in 0..15, with a scale and a zero for every 32 along the input, as `int4` is
everywhere (`model/packing.py`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.model.kernels.launch import overlap, wait_turn
from quicksilver.model.kernels.project import Weight
from quicksilver.model.kernels.stream import widen_fours
from quicksilver.model.packing import GROUP_LEN, quantise_int4

_BYTES = 512
"""That a program makes wide."""


def to_fours(w: Tensor) -> tuple[Tensor, Tensor]:
    """(out, in) -> bytes (out, in / 2), the even weight low, and groups (out, in / 32, 2) fp16: scale and zero."""
    q, scale, zero = quantise_int4(w, GROUP_LEN)
    return q, torch.stack((scale, zero), -1).half()


@triton.jit
def _expand_kernel(w, groups, out, K, BYTES: tl.constexpr, OVERLAPS: tl.constexpr):
    wait_turn(OVERLAPS)
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    at = tl.program_id(1) * BYTES + tl.arange(0, BYTES)
    is_in = (at < K // 2)[None, :]
    low, high = widen_fours(w, groups, row, at, is_in, K, out.dtype.element_ty)
    to = out + row[:, None] * K + 2 * at[None, :]
    tl.store(to, low, mask=is_in)
    tl.store(to + 1, high, mask=is_in)


def expand(weight: Weight, dtype: torch.dtype) -> Tensor:
    """The weights in 16 bits, in memory that is anybody's again once they are used."""
    assert weight.groups is not None, "four bits"
    out = torch.empty(len(weight.w), weight.depth, dtype=dtype, device=weight.w.device)
    grid = (len(out), triton.cdiv(weight.w.shape[1], _BYTES))
    _expand_kernel[grid](weight.w, weight.groups, out, weight.depth, BYTES=_BYTES, num_warps=4, **overlap())
    return out
