"""The grids of GGUF's four-bit formats: for every 32 inputs of a row, weight = n * scale + least with n in 0 … 15.

What the file rounded to 16 steps can so be kept on these steps, without rounding it once more.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Grid = tuple[Tensor, Tensor]
"""Scales and least values, both (rows, inputs / 32) fp32."""
Bytes = NDArray[np.uint8]
_BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q4_K": 144}


def read_grid(rows: Bytes, kind: str) -> Grid | None:
    """Of the stored bytes of a tensor, (rows, bytes); None for formats of more bits."""
    if kind not in _BLOCK_BYTES:
        return None
    blocks = rows.reshape(-1, _BLOCK_BYTES[kind])
    scale = _halves(blocks[:, :2])
    if kind == "Q4_K":
        scale, least = _super_blocks(blocks, scale)
    else:
        least = _halves(blocks[:, 2:4]) if kind == "Q4_1" else -8 * scale
    return torch.from_numpy(scale.reshape(len(rows), -1)), torch.from_numpy(least.reshape(len(rows), -1))


def _super_blocks(blocks: Bytes, scale: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Eight groups share a scale of their scales and one of their least values."""
    from gguf.quants import Q4_K

    factors, offsets = Q4_K.get_scale_min(np.ascontiguousarray(blocks[:, 4:16]))
    return scale * factors, -_halves(blocks[:, 2:4]) * offsets


def _halves(two_bytes: Bytes) -> NDArray[np.float32]:
    return np.ascontiguousarray(two_bytes).view(np.float16).astype(np.float32)
