"""One forward of a verify round: its fixed row layout, its workspaces, and the head after it.

The layout is written once, because a round's shape does not change: the rows of all sequences, one sequence after the
other. The row contents are written on the device (`round_kernels.py`, `trees.py`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quicksilver.backends.cuda.buffers import HeadBuffers, RowBuffers, bucket_of
from quicksilver.backends.cuda.inflight import RoundShape
from quicksilver.backends.cuda.kernels.adapter_rows import AdapterTiles
from quicksilver.backends.cuda.kernels.attention import cut_tiles
from quicksilver.backends.cuda.kernels.head import BLOCK_V, WIDE_BLOCK_V, propose_rows
from quicksilver.backends.cuda.kernels.wide_rounds import Sequences
from quicksilver.backends.cuda.kernels.workspace import Workspace
from quicksilver.backends.cuda.logit_bias import SamplingOptions
from quicksilver.backends.cuda.trees import tree_slot_table
from quicksilver.core import DecodeParams

if TYPE_CHECKING:
    from quicksilver.backends.cuda.graphs import GraphExecutor


# Proposing rows above which a batch of many sequences has wide vocabulary tiles.
WIDE_HEAD_ROWS = 64


class RoundForward:
    def __init__(
        self, executor: GraphExecutor, shape: RoundShape, pages: tuple[Tensor, Tensor], *, is_batch: bool = False
    ) -> None:
        """`pages`: the page tables of the sequences on the host and on the device. `is_batch`: of many sequences, with
        kernels of their own, so that results can differ in the last bits from those of an ordinary forward."""
        self.network, self.shape = executor.network, shape
        self.num_heads = bucket_of(shape.num_verify)
        self.num_rows = bucket_of(shape.num_verify)
        sequences = Sequences(shape.num_sequences, shape.verify_rows) if is_batch else None
        self.workspace = self.network.workspace(self.num_rows, sequences=sequences)
        tiles = self._tiles(self.workspace.attend.shape.tile_rows)
        tree_slots = tree_slot_table(shape) if shape.tree_rows else None
        self.rows = RowBuffers(self.num_rows, len(tiles), pages, executor.cache.page_size, tree_slots)
        self.rows.inputs.tables.tiles.copy_(torch.tensor(tiles, dtype=torch.int32))
        self.rows.device[3].fill_(-1)
        is_wide = self.workspace.attend.shape.is_decode and self.num_heads > WIDE_HEAD_ROWS
        block_v = WIDE_BLOCK_V if is_wide else BLOCK_V
        self.head = HeadBuffers(self.num_heads, self.network.weights.head.w, self.network.input_dtype, block_v=block_v)
        self.head.ints[0, : shape.num_verify] = torch.arange(shape.num_verify)
        # Per sequence: the parameters that were written last.
        self._written: dict[int, tuple[object, ...]] = {}

    @cached_property
    def adapter_workspace(self) -> Workspace:
        """Of forwards with row adapters, which do not take the layer-fused path."""
        if self.workspace.uses_library:
            return self.workspace
        return self.network.workspace(self.num_rows, has_prompt=True)

    def _tiles(self, tile_rows: int) -> list[tuple[int, int, int]]:
        """Attention tiles: the rows of each sequence, and for trees also one tile per row."""
        shape = self.shape
        segments = [(b * shape.verify_rows, (b + 1) * shape.verify_rows) for b in range(shape.num_sequences)]
        shared = cut_tiles(segments, tile_rows)
        if not shape.tree_rows:
            return shared
        return shared + [(b, row, row + 1) for b, (first, end) in enumerate(segments) for row in range(first, end)]

    def write_params(self, b: int, params: DecodeParams, options: SamplingOptions) -> None:
        """Write the sampling parameters of sequence b on the host. Skipped if the previous request had the same."""
        written = (options, params.seed, params.temperature, params.banned_ids, tuple(params.logit_bias.items()))
        if self._written.get(b) == written:
            return
        self._written[b] = written
        self.head.write_params(self.shape.rows_of(b), params, options)

    def run(
        self,
        is_gated: bool,
        options: SamplingOptions,
        results: Tensor,
        runners_up: Tensor | None = None,
        adapters: AdapterTiles | None = None,
    ) -> None:
        """The network and its head. `results` (4, rows) receives the proposals. `adapters`: those of the rows."""
        inputs = self.rows.inputs if adapters is None else replace(self.rows.inputs, adapters=adapters)
        own = self.workspace if adapters is None else self.adapter_workspace
        x, weights = self.network.run(inputs, own, is_gated), self.network.weights
        workspace = self.head.workspace.with_results(results, runners_up)
        propose_rows(x, weights.norm, weights.head, self.head.rows(options), workspace)
