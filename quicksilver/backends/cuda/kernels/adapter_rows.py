"""The row adapters of one forward on the device: which adapter each row has, and the terms B (A x) of a linear.

A captured graph reads the slot table and the pools at fixed addresses. Adapters come and go in them between forwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import triton
from torch import Tensor

from quicksilver.backends.cuda.kernels.adapter_kernels import NUM_COUNTS, PAGE_RANKS, expand_kernel, shrink_kernel
from quicksilver.backends.cuda.kernels.launch import pdl_options
from quicksilver.model.lowrank import LINEARS
from quicksilver.model.row_adapters import MAX_RANK

# Most pages of an adapter.
MAX_PAGES = MAX_RANK // PAGE_RANKS
# Columns of the input that one program multiplies by A. More programs share a longer row.
SPLIT_DEPTH = 512
# Rows of a tile: of forwards whose results must not depend on their size, and of long prompts.
TILE, PROMPT_TILE = 16, 64
# Programs that share the pages of one tile.
PAGE_PROGRAMS = 2
_BLOCK_K, _BLOCK_N = 256, 256
_SHRINK_WARPS, _EXPAND_WARPS = 4, 4
NO_ADAPTER, UNUSED = -1, -2


@dataclass(frozen=True, slots=True)
class AdapterPools:
    """Pages of all adapters by linear: A (pages, layers, 16, in) and B (pages, layers, 16, out). A line of `lines` is a
    slot: the number of pages of each linear, then page ids."""

    a: dict[str, Tensor]
    b: dict[str, Tensor]
    lines: Tensor  # (slots, NUM_COUNTS + MAX_PAGES) int32


def max_tiles(num_rows: int, num_slots: int, tile: int) -> int:
    """The most tiles that `num_rows` rows have: one for each adapter and one for rows without, and the full ones."""
    distinct = min(num_rows, num_slots + 1)
    return distinct + (num_rows - distinct) // tile


def cut_adapter_tiles(slots: npt.NDArray[np.int32], tiles: npt.NDArray[np.int32]) -> None:
    """Writes the tiles of rows whose adapters have these slots, -1 for none: the slot of a tile, then its rows."""
    order = np.argsort(slots, kind="stable")
    in_order, tile = slots[order], tiles.shape[1] - 1
    starts = np.flatnonzero(np.diff(in_order, prepend=in_order[0] - 1))
    counts = np.diff(starts, append=len(slots))
    num_tiles = -(-counts // tile)
    first_tiles = np.cumsum(num_tiles) - num_tiles
    tiles[:, 0], tiles[:, 1:] = UNUSED, -1
    tiles[: num_tiles.sum(), 0] = np.repeat(in_order[starts], num_tiles)
    places = np.arange(len(slots)) - np.repeat(starts, counts)  # of a row among those of its adapter
    tiles[np.repeat(first_tiles, counts) + places // tile, 1 + places % tile] = order


@dataclass(frozen=True, slots=True)
class AdapterScratch:
    """Buffers that all forwards share, because they run one after the other."""

    low: Tensor  # A x by split, fp32
    term: Tensor  # B (A x), fp32

    @classmethod
    def allocate(cls, pools: AdapterPools, split_rows: int, all_rows: int, term_rows: int) -> AdapterScratch:
        """`split_rows`: of the largest forward with split K; `term_rows`: of the largest one that reads `term`."""
        device, splits = pools.lines.device, max(num_splits(a.shape[-1]) for a in pools.a.values())
        low = torch.zeros(max(splits * split_rows, all_rows) * MAX_RANK, device=device)
        return cls(low, torch.zeros(term_rows * max(b.shape[-1] for b in pools.b.values()), device=device))


def num_splits(depth: int) -> int:
    return -(-depth // SPLIT_DEPTH)


@dataclass(frozen=True, slots=True)
class AdapterTiles:
    """The tiles of one forward, and what computes the terms of its rows."""

    pools: AdapterPools
    scratch: AdapterScratch
    tiles: Tensor  # (tiles, 1 + rows of a tile) int32
    num_rows: int
    is_split: bool

    def term(self, index: int, name: str, x: Tensor, steps: Tensor | None = None) -> Tensor:
        """B (A x) of one linear, (rows, out) fp32, zero on rows without an adapter. Valid until the next call. `steps`:
        the scales of an fp8 x."""
        out = self.scratch.term[: self.num_rows * self.pools.b[name].shape[-1]].view(self.num_rows, -1)
        self._compute(index, name, x, steps, out, adds=False)
        return out

    def add(self, index: int, name: str, x: Tensor, y: Tensor) -> None:
        """y += B (A x) of one linear."""
        self._compute(index, name, x, None, y, adds=True)

    def _compute(self, index: int, name: str, x: Tensor, steps: Tensor | None, y: Tensor, *, adds: bool) -> None:
        pools, (num_tiles, width) = self.pools, self.tiles.shape
        a, b, lines = pools.a[name][:, index], pools.b[name][:, index], pools.lines
        (rows, depth), out_dim = x.shape, b.shape[-1]
        assert rows == len(y) == self.num_rows
        splits = num_splits(depth) if self.is_split else 1
        shape = {"LINEAR": list(LINEARS).index(name), "TILE": width - 1, "RANK": MAX_RANK}
        shrink_kernel[(num_tiles, min(PAGE_PROGRAMS, len(a)), splits)](
            x, x if steps is None else steps, a, self.tiles, lines, self.scratch.low, depth,
            SPLIT_DEPTH if self.is_split else depth, rows, a.stride(0), lines.shape[1], **shape,
            BLOCK_K=_BLOCK_K if steps is None else 64, FP8=steps is not None,
            GROUP=64 if steps is None else depth // len(steps), num_warps=_SHRINK_WARPS, **pdl_options(),
        )  # fmt: skip
        block_n = min(_BLOCK_N, triton.next_power_of_2(out_dim))
        expand_kernel[(num_tiles, triton.cdiv(out_dim, block_n))](
            self.scratch.low, b, self.tiles, lines, y, out_dim, rows, b.stride(0), lines.shape[1], **shape,
            BLOCK_N=block_n, SPLITS=splits, ADDS=adds, num_warps=_EXPAND_WARPS, **pdl_options(),
        )  # fmt: skip


assert len(LINEARS) == NUM_COUNTS
