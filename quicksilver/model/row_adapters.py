"""Row adapters: LoRA adapters that a forward applies to some of its rows, beside the canvas adapter and unmerged.

Each row has at most one of them. Its numbers do not depend on the other rows of the forward, nor on their adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from quicksilver.errors import CheckpointRefused
from quicksilver.model.adapters import check_fits, stack_adapters
from quicksilver.model.attention import on_full_tiles
from quicksilver.model.config import ModelConfig
from quicksilver.model.files.peft import MAX_PEFT_RANK
from quicksilver.model.lowrank import Adapter, CanvasAdapter, LowRank, LowRankModules

# Largest rank of an adapter's matrices, after up to three fused projections were joined.
MAX_RANK = 3 * MAX_PEFT_RANK

Pair = LowRank | LowRankModules


class RowPair(Protocol):
    """What a backend made of a pair."""

    def delta(self, x: Tensor) -> Tensor:
        """B (A x)"""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RowAdapter:
    """One adapter in the form that a backend computes. Compared by identity."""

    layers: Sequence[Mapping[str, RowPair]]  # by layer: some of qkv, o, gu, dn
    rank: int
    num_bytes: int
    # Embeddings that replace those of the model; ids are sorted. `replaces_head`: the head is tied to the table.
    embedding_ids: Tensor | None = None
    embedding_rows: Tensor | None = None
    replaces_head: bool = False
    # What canvas rows pass through in place of this adapter: its pairs and those for canvas rows alone, as one adapter.
    canvas: RowAdapter | None = None

    def replace_embeddings(self, x: Tensor, token_ids: Tensor, rows: Tensor) -> None:
        """Writes the adapter's own embeddings into these rows of `x`."""
        if self.embedding_ids is None or self.embedding_rows is None:
            return
        place, is_own = _find(token_ids[rows], self.embedding_ids)
        x[rows[is_own]] = self.embedding_rows[place[is_own]].to(x.dtype)

    def replace_logits(self, logits: Tensor, hidden: Tensor) -> None:
        """Writes the logits of the adapter's own embeddings, for rows that all use it."""
        if self.replaces_head and self.embedding_ids is not None and self.embedding_rows is not None:
            table = self.embedding_rows.to(hidden.dtype)
            logits[:, self.embedding_ids] = on_full_tiles(lambda x: x @ table.T, hidden).to(logits.dtype)


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """The rows of a forward that pass through one adapter."""

    adapter: RowAdapter
    rows: Tensor

    def to(self, device: torch.device | str) -> AdapterRows:
        return AdapterRows(self.adapter, self.rows.to(device))

    def add(self, index: int, name: str, x: Tensor, y: Tensor) -> None:
        """y[rows] += B (A x[rows]) of one linear, if the adapter has it."""
        pair = self.adapter.layers[index].get(name)
        if pair is not None:
            y.index_add_(0, self.rows, on_full_tiles(pair.delta, x[self.rows]))


def _find(token_ids: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """The place of every token in the sorted `known`, and whether it is there."""
    place = torch.searchsorted(known, token_ids).clamp(max=len(known) - 1)
    return place, known[place] == token_ids


def check_row_adapter(config: ModelConfig, adapter: Adapter) -> None:
    """Refuses an adapter that this network cannot apply to rows."""
    if isinstance(adapter, CanvasAdapter):
        raise CheckpointRefused("a canvas adapter drafts for a model and cannot be served under a name of its own")
    check_fits(config, adapter)
    is_sparse_from = config.num_layers if config.moe is None else config.moe.num_dense
    for index, name, pair in chain(adapter.low_rank(), adapter.canvas.low_rank() if adapter.canvas is not None else ()):
        if index >= is_sparse_from and name in ("gu", "dn"):
            raise CheckpointRefused(f"adapter layer {index} {name}: adapters of experts are not supported")
        if pair.A.shape[0] > MAX_RANK:
            raise CheckpointRefused(
                f"adapter layer {index} {name} has rank {pair.A.shape[0]}, at most {MAX_RANK} is served"
            )
    tensors = [*adapter.parameters(), *(table for table in (adapter.embedding_rows,) if table is not None)]
    if not all(bool(tensor.isfinite().all()) for tensor in tensors):
        raise CheckpointRefused("adapter has values that are not finite")


def convert(
    config: ModelConfig, adapter: Adapter, make_pair: Callable[[LowRank], Pair], device: torch.device | str
) -> RowAdapter:
    """The adapter with every pair in the form of a backend."""
    found = _convert(config, adapter, make_pair, device)
    if adapter.canvas is None:
        return found
    on_canvas = _convert(config, stack_adapters([adapter, adapter.canvas]), make_pair, device)
    return replace(found, canvas=on_canvas, num_bytes=found.num_bytes + on_canvas.num_bytes)


def _convert(
    config: ModelConfig, adapter: Adapter, make_pair: Callable[[LowRank], Pair], device: torch.device | str
) -> RowAdapter:
    """The adapter without its pairs for canvas rows."""
    layers: list[dict[str, Pair]] = [{} for _ in range(config.num_layers)]
    rank = 0
    for index, name, pair in adapter.low_rank():
        layers[index][name], rank = make_pair(pair), max(rank, pair.A.shape[0])
    ids, rows = adapter.embedding_ids, adapter.embedding_rows
    if ids is not None and rows is not None:
        order = ids.argsort()
        ids, rows = ids[order].to(device), rows[order].to(device)
    num_bytes = sum(_bytes_of(pair) for layer in layers for pair in layer.values())
    num_bytes += rows.nbytes if rows is not None else 0
    return RowAdapter(layers, rank, num_bytes, ids, rows, config.tied_head)


def _bytes_of(pair: Pair) -> int:
    tensors: Iterable[Tensor] = (*pair.parameters(), *pair.buffers())
    return sum(tensor.nbytes for tensor in tensors)
