"""How activations meet fp8 weights where rows are few: which form they take, and the rounding to fp8 itself.

A rounded activation is its e4m3 number times a step. A step belongs to a row and to the stretch of columns that one
program writes, so that nobody waits for a row's largest number; the linear behind it reads just that stretch at once.
"""

from __future__ import annotations

from enum import Enum

import triton
import triton.language as tl

from quicksilver.backends.cuda.kernels.weight_streaming import pick_columns
from quicksilver.model.config import ModelConfig


class Inputs(Enum):
    """What the inputs of fp8 linears are, up to 64 rows."""

    HALF = "half"
    """fp16, shrunk; weights turn into fp16 on their way to the matrix unit."""
    ROUNDED = "rounded"
    """fp8 with steps: the matrix unit multiplies fp8 by fp8. Faster, and coarser: an activation has three bits left."""


def can_round(config: ModelConfig) -> bool:
    """Whether every linear goes in tiles of 64 columns, which fp8 products need, with steps at 128 and 64 columns."""
    widths = (config.dim // 2, config.ffn_dim)
    return config.head_dim == 128 and config.dim % 128 == 0 and all(pick_columns(width) == 64 for width in widths)


@triton.jit
def step_of(top):
    """The step with which the largest of some numbers is the largest of fp8."""
    return tl.maximum(top, 1e-12) / 448.0
