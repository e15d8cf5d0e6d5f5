"""The table of row adapters with the buffers of the forwards that use it: tiles by number of rows, and scratch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from quicksilver.backends.cuda.adapter_table import AdapterTable, page_bytes
from quicksilver.backends.cuda.buffers import PROMPT_ROW_STEP, GraphLimits, bucket_of
from quicksilver.backends.cuda.kernels.adapter_rows import (
    PROMPT_TILE,
    TILE,
    UNUSED,
    AdapterScratch,
    AdapterTiles,
    cut_adapter_tiles,
    max_tiles,
)
from quicksilver.backends.cuda.kernels.network import CudaNetwork, MatmulMode
from quicksilver.backends.cuda.kernels.workspace import SMALL_BATCH_ROWS
from quicksilver.model.row_adapters import AdapterRows


class AdapterBuffers:
    def __init__(self, table: AdapterTable, limits: GraphLimits) -> None:
        self.table = table
        graph_rows = bucket_of(max(limits.max_rows, limits.max_segments))
        all_rows = max(graph_rows, -(-limits.prompt_rows // PROMPT_ROW_STEP) * PROMPT_ROW_STEP)
        # With split K and small tiles the sums of a row do not depend on the number of rows.
        is_invariant = limits.matmul_mode is MatmulMode.BATCH_INVARIANT
        self._split_rows = all_rows if is_invariant else graph_rows
        term_rows = all_rows if is_invariant else SMALL_BATCH_ROWS
        self._scratch = AdapterScratch.allocate(table.pools, self._split_rows, all_rows, term_rows)
        self._rows: dict[int, AdapterTiles] = {}

    @classmethod
    def for_network(cls, network: CudaNetwork, limits: GraphLimits, device: torch.device) -> AdapterBuffers | None:
        """None if the memory is too small for any adapter."""
        config, dtype = network.config, network.weights.tokens.dtype
        num_pages = limits.adapter_bytes // page_bytes(config, dtype)
        if not num_pages:
            return None
        return cls(AdapterTable(config, num_pages, device, dtype), limits)

    def rows(self, count: int) -> AdapterTiles:
        """The tiles of ordinary forwards of `count` rows, at fixed addresses."""
        if count not in self._rows:
            self._rows[count] = self.new_rows(count)
        return self._rows[count]

    def new_rows(self, count: int) -> AdapterTiles:
        pools, is_split = self.table.pools, count <= self._split_rows
        tile = TILE if is_split else PROMPT_TILE
        shape = (max_tiles(count, self.table.num_slots, tile), 1 + tile)
        tiles = torch.full(shape, UNUSED, dtype=torch.int32, device=pools.lines.device)
        return AdapterTiles(pools, self._scratch, tiles, count, is_split)

    def fill(self, row_adapters: Sequence[AdapterRows], count: int) -> None:
        """Queue the copy of a batch's tiles. Rows of a bucket beyond the batch have no adapter."""
        send_tiles(self.rows(count), self.table.slots_of_rows(row_adapters, count))


def send_tiles(rows: AdapterTiles, slots: npt.NDArray[np.int32]) -> None:
    """Queue the copy of the tiles of rows whose adapters have these slots."""
    host = torch.empty(rows.tiles.shape, dtype=torch.int32, pin_memory=rows.tiles.is_cuda)
    cut_adapter_tiles(slots, host.numpy())
    rows.tiles.copy_(host, non_blocking=True)
