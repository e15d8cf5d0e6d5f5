"""Activation formats of fp8 linears for small batches, and quantisation to fp8.

An fp8 activation is an e4m3 value times a scale (`step`). A scale covers one row and the group of columns that one
program writes, so that no program waits for the maximum of a whole row. The next linear reads one group per k-block.
"""

from __future__ import annotations

from enum import Enum

import triton
import triton.language as tl

from quicksilver.backends.cuda.kernels.weight_streaming import pick_block_n
from quicksilver.model.config import ModelConfig


class ActivationFormat(Enum):
    """Format of the inputs of fp8 linears, up to 64 rows."""

    # fp16 times INPUT_SCALE. Weights are converted to fp16 before the MMA.
    HALF = "half"
    # fp8 with scales; the MMA multiplies fp8 by fp8. Faster and less accurate: three mantissa bits are left.
    FP8_STEPS = "rounded"


def supports_fp8_activations(config: ModelConfig) -> bool:
    """Whether all linears have tiles of 64 columns, which fp8 MMA needs, and groups of 128 and 64 columns. Inputs of
    routed experts are fp16."""
    if config.moe is not None:
        return False
    widths = (config.dim // 2, config.ffn_dim)
    return config.head_dim == 128 and config.dim % 128 == 0 and all(pick_block_n(width) == 64 for width in widths)


@triton.jit
def fp8_step(top):
    """The scale that maps `top` to the largest fp8 value."""
    return tl.maximum(top, 1e-12) / 448.0
