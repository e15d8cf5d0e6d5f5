"""One forward of a round: where its rows stand, what it writes on its way, and the head behind it.

Rows are laid out once, since a round's shape does not change: the verify rows of all sequences, then the masks that
ride beside them, sequence by sequence. What the rows say is written on the device (`transition.py`, `trees.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quicksilver.backends.cuda.graphs import SMALLEST, HeadBuffers, RowBuffers, bucket_of
from quicksilver.backends.cuda.inflight import RoundShape
from quicksilver.backends.cuda.kernels.attention import cut_tiles
from quicksilver.backends.cuda.kernels.head import propose_rows
from quicksilver.backends.cuda.logit_bias import HeadKind
from quicksilver.backends.cuda.trees import fork_table
from quicksilver.core import DecodeParams

if TYPE_CHECKING:
    from quicksilver.backends.cuda.graphs import GraphRunner


class RoundForward:
    def __init__(self, runner: GraphRunner, shape: RoundShape, pages: tuple[Tensor, Tensor]) -> None:
        """`pages`: the sequences' page tables on the host and on the device."""
        self.network, self.shape = runner.network, shape
        self.num_heads = bucket_of(shape.num_proposals)
        self.first_beside, self.num_rows = self._layout()
        tiles = self._tiles(self.network.shape(self.num_rows).tile_rows)
        forks = fork_table(shape) if shape.tree_rows else None
        self.rows = RowBuffers(self.num_rows, len(tiles), pages, runner.cache.page_size, forks)
        self.rows.inputs.tables.tiles.copy_(torch.tensor(tiles, dtype=torch.int32))
        self.rows.device[3].fill_(-1)
        self.rows.device[7, self.first_beside :].fill_(1 if shape.num_sets else 0)
        self.space = self.network.space(self.num_rows)
        self.head = HeadBuffers(self.num_heads, self.network.weights.head.w, self.network.input_dtype)
        self._wishes: dict[int, tuple[object, ...]] = {}
        beside = torch.arange(shape.num_proposals - shape.num_verify) + self.first_beside
        self.head.ints[0, : shape.num_verify] = torch.arange(shape.num_verify)
        self.head.ints[0, shape.num_verify : shape.num_proposals] = beside

    def _layout(self) -> tuple[int, int]:
        """-> the first row beside the verify rows, and how many rows there are."""
        shape, is_whole = self.shape, self.network.is_whole(self.num_heads)
        # Sets begin at a whole tile where tiles choose their weights, so that no tile has to read both kinds.
        align = self.network.set_align(self.num_heads) if shape.num_sets else 1
        first = -(-shape.num_verify // align) * align
        count, align = first + shape.num_proposals - shape.num_verify, max(align, SMALLEST)
        return first, -(-count // align) * align if is_whole else bucket_of(count)

    def _tiles(self, tile_rows: int) -> list[tuple[int, int, int]]:
        """Runs of rows of one sequence: its verify rows, and then its sets, or each row of its tree."""
        shape = self.shape
        verified = [(b * shape.verify_rows, (b + 1) * shape.verify_rows) for b in range(shape.num_sequences)]
        starts = [self.first_beside + b * shape.num_beside for b in range(shape.num_sequences)]
        shared = cut_tiles(verified, tile_rows)
        if not shape.tree_rows:
            return shared + cut_tiles([(start, start + shape.num_beside) for start in starts], tile_rows)
        is_found = shape.tree_rows % tile_rows == 0 or len(verified) == 1
        assert is_found or not self.network.is_whole(self.num_heads), "one launch finds a row's tile by its number"
        return shared + [(b, row, row + 1) for b, (first, end) in enumerate(verified) for row in range(first, end)]

    def write_wishes(self, b: int, params: DecodeParams, kind: HeadKind) -> None:
        """How sequence b's proposals are drawn and biased, on the host. Most requests wish what the last one did."""
        wishes = (kind, params.seed, params.temperature, params.banned_ids, tuple(params.logit_bias.items()))
        if self._wishes.get(b) == wishes:
            return
        self._wishes[b] = wishes
        for rows in self.shape.proposals_of(b):
            if rows.start < rows.stop:
                self.head.write_wishes(rows, params, kind)

    def run(self, is_gated: bool, kind: HeadKind, results: Tensor, runners_up: Tensor | None = None) -> None:
        """The network and its head; four numbers a proposal go into `results`."""
        x, weights = self.network.run(self.rows.inputs, self.space, is_gated), self.network.weights
        space = self.head.space.with_results(results, runners_up)
        propose_rows(x, weights.norm, weights.head, self.head.rows(kind), space)
