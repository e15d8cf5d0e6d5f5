"""Weights of four bits (`words.py`) made wide again, where rows are so many that the library's products are faster."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.backends.cuda.kernels.int4_packing import STEP_SHIFT
from quicksilver.backends.cuda.kernels.launch import overlap, wait_turn
from quicksilver.backends.cuda.kernels.linears import Weight
from quicksilver.backends.cuda.kernels.weight_streaming import GROUP_WORDS, group_halves

_WORDS = 512
"""That a program makes wide."""
_SMALL = tl.constexpr(2.0**-STEP_SHIFT)
_GROUP = tl.constexpr(GROUP_WORDS)


@triton.jit
def _expand_kernel(w, groups, scale, out, K, WORDS: tl.constexpr, OVERLAPS: tl.constexpr):
    wait_turn(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    is_in = at < K // 4
    word = tl.load(w + row * (K // 4) + at, mask=is_in, other=0).to(tl.int32)
    step, least = group_halves(tl.load(groups + row * (K // 32) + at // _GROUP, mask=is_in, other=0))
    step, factor = step.to(tl.float32) * _SMALL, tl.load(scale + row)
    to = out + row * K + at // _GROUP * 32 + at % _GROUP
    for i in tl.static_range(4):
        value = ((word >> (4 * i)) & 15).to(tl.float32) * step + least.to(tl.float32)
        tl.store(to + i * _GROUP, (value * factor).to(out.dtype.element_ty), mask=is_in)


def expand(weight: Weight, dtype: torch.dtype) -> Tensor:
    """The weights in 16 bits, in memory that is anybody's again once they are used."""
    assert weight.groups is not None, "four bits"
    out = torch.empty(len(weight.w), weight.depth, dtype=dtype, device=weight.w.device)
    grid = (len(out), triton.cdiv(weight.w.shape[1], _WORDS))
    arguments = (weight.w, weight.groups, weight.scale, out, weight.depth)
    _expand_kernel[grid](*arguments, WORDS=_WORDS, num_warps=4, **overlap())
    return out
