"""Padding of rows to full tiles, which makes float matmuls on a CPU batch-invariant."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from quicksilver.model.visibility import ROW_TILE


def on_full_tiles(linear: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`linear(x)`, on a CPU with the rows padded to full tiles: a row's bits then do not depend on the row count."""
    missing = missing_rows(x, ROW_TILE)
    return linear(pad(x, (0, 0, 0, missing)))[: len(x)] if missing else linear(x)


def missing_rows(x: Tensor, tile: int) -> int:
    """How many rows of padding make float matmuls on a CPU batch-invariant; 0 on other devices and in training.

    CPU libraries use different routines, with another reduction order, for a remainder of rows and for few rows.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling() or torch.is_grad_enabled() or tile == 1:
        return 0
    return max(-len(x) % tile, min_invariant_rows() - len(x))


# (outputs, inputs) of the matmuls that `min_invariant_rows` tries.
_TRIED_SHAPES = ((512, 192), (192, 576), (64, 1536))


@cache
def min_invariant_rows() -> int:
    """The smallest row count from which this CPU's matmuls keep one reduction order per row: 4 on most CPUs.

    It is found by comparing bits once per process.
    """
    generator = torch.Generator().manual_seed(0)
    pairs = [
        (torch.randn(64, k, generator=generator), torch.randn(n, k, generator=generator)) for n, k in _TRIED_SHAPES
    ]

    def is_enough(count: int) -> bool:
        row_counts = range(count, 33, ROW_TILE)
        return all(torch.equal(x[:rows] @ w.t(), (x @ w.t())[:rows]) for x, w in pairs for rows in row_counts)

    return next((count for count in (ROW_TILE, 8, 16, 32) if is_enough(count)), ROW_TILE)
