"""Dequantise int4 weights (`int4_packing.py`) to 16 bits, for batches where cuBLAS is faster than our kernels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.backends.cuda.kernels.int4_packing import STEP_SHIFT
from quicksilver.backends.cuda.kernels.launch import pdl_options, pdl_wait_and_launch
from quicksilver.backends.cuda.kernels.linears import Weight
from quicksilver.backends.cuda.kernels.weight_streaming import GROUP_WORDS, group_halves

# Words that one program dequantises.
_WORDS = 512
_STEP_SCALE = tl.constexpr(2.0**-STEP_SHIFT)
_GROUP = tl.constexpr(GROUP_WORDS)


@triton.jit
def _dequantise_kernel(w, groups, scale, out, K, WORDS: tl.constexpr, PDL: tl.constexpr):
    pdl_wait_and_launch(PDL)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    is_in = at < K // 4
    word = tl.load(w + row * (K // 4) + at, mask=is_in, other=0).to(tl.int32)
    step, minimum = group_halves(tl.load(groups + row * (K // 32) + at // _GROUP, mask=is_in, other=0))
    step, factor = step.to(tl.float32) * _STEP_SCALE, tl.load(scale + row)
    to = out + row * K + at // _GROUP * 32 + at % _GROUP
    for i in tl.static_range(4):
        value = ((word >> (4 * i)) & 15).to(tl.float32) * step + minimum.to(tl.float32)
        tl.store(to + i * _GROUP, (value * factor).to(out.dtype.element_ty), mask=is_in)


def dequantise_weight(weight: Weight, dtype: torch.dtype) -> Tensor:
    """The weights in 16 bits, in temporary memory."""
    assert weight.groups is not None, "not an int4 weight"
    out = torch.empty(len(weight.w), weight.depth, dtype=dtype, device=weight.w.device)
    grid = (len(out), triton.cdiv(weight.w.shape[1], _WORDS))
    arguments = (weight.w, weight.groups, weight.scale, out, weight.depth)
    _dequantise_kernel[grid](*arguments, WORDS=_WORDS, num_warps=4, **pdl_options())
    return out
