"""Scales and minimums of GGUF's 4-bit formats: for every 32 inputs of a row, weight = n * scale + minimum, n in 0 … 15.

With them, weights that a file stores in 4 bits can be kept on the file's 16 steps instead of being rounded again.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Scales and minimums, both (rows, inputs / 32) fp32.
Grid = tuple[Tensor, Tensor]
Bytes = NDArray[np.uint8]
# Bytes per block, as in the GGUF specification.
_BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q4_K": 144}


def read_grid(rows: Bytes, kind: str) -> Grid | None:
    """The grid of a tensor, from its stored bytes (rows, bytes); None for every format but Q4_0, Q4_1 and Q4_K."""
    if kind not in _BLOCK_BYTES:
        return None
    blocks = rows.reshape(-1, _BLOCK_BYTES[kind])
    scale = _halves(blocks[:, :2])
    if kind == "Q4_K":
        scale, minimum = _super_blocks(blocks, scale)
    else:
        minimum = _halves(blocks[:, 2:4]) if kind == "Q4_1" else -8 * scale
    return torch.from_numpy(scale.reshape(len(rows), -1)), torch.from_numpy(minimum.reshape(len(rows), -1))


def _super_blocks(blocks: Bytes, scale: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Q4_K: eight groups share one scale for their scales and one for their minimums."""
    from gguf.quants import Q4_K

    factors, offsets = Q4_K.get_scale_min(np.ascontiguousarray(blocks[:, 4:16]))
    return scale * factors, -_halves(blocks[:, 2:4]) * offsets


def _halves(two_bytes: Bytes) -> NDArray[np.float32]:
    return np.ascontiguousarray(two_bytes).view(np.float16).astype(np.float32)
