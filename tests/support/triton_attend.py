"""`TritonAttend`: the paged kernel with the interface of `SdpaAttend`, for any row plan."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from quicksilver.backends.cuda.kernels.attention import (
    AttentionShape,
    AttentionWorkspace,
    RowTables,
    attend_paged,
    cut_tiles,
)
from quicksilver.backends.cuda.kernels.decode_attention import attend_decode
from quicksilver.model.attention import PagedCache, RowPlan


class TritonAttend:
    """Attention of one forward: writes KV, then attends. Row tables are built once."""

    def __init__(
        self, plan: RowPlan, cache: PagedCache, splits: int = 16, block_m: int = 64, *, is_decode: bool = False
    ) -> None:
        """`is_decode`: by the kernel for tiles with few rows, with `splits` at most."""
        self.cache, self.splits, self.block_m, self.split_keys = cache, splits, block_m, 64 if is_decode else 0
        device = plan.positions.device
        writes = (plan.slots >= 0).nonzero().squeeze(1)
        self._writes = (writes, plan.slots[writes])
        self._segments = [(segment.row_start, segment.row_end) for segment in plan.segments]
        pages = pad_sequence([segment.page_ids for segment in plan.segments], batch_first=True)
        self._rows = RowTables(
            plan.prefix_end.int(),
            plan.span_start.int(),
            plan.span_end.int(),
            torch.empty(0),
            pages.to(device, torch.int32).contiguous(),
            cache.page_size,
        )
        self._workspace: AttentionWorkspace | None = None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, slots = self._writes
        for store, new in ((self.cache.k[layer], k), (self.cache.v[layer], v)):
            store.index_copy_(0, slots, new[rows].to(store.dtype))
        shape = AttentionShape(q.shape[1], k.shape[1], q.shape[2], self.block_m, self.splits, self.split_keys)
        if self._workspace is None:
            self._prepare(shape, q)
        assert self._workspace is not None
        qkv = torch.cat((q, k, v), dim=1)
        caches = (self.cache.k[layer], self.cache.v[layer])
        if self.split_keys:
            return attend_decode(qkv, caches, self._rows, self._workspace).view_as(q).clone()
        return attend_paged(qkv, caches, self._rows, shape, self._workspace).view_as(q).clone()

    def _prepare(self, shape: AttentionShape, q: Tensor) -> None:
        tiles = torch.tensor(cut_tiles(self._segments, shape.tile_rows), dtype=torch.int32, device=q.device)
        old = self._rows
        self._rows = RowTables(old.prefix_end, old.span_start, old.span_end, tiles, old.pages, old.page_size)
        self._workspace = AttentionWorkspace.allocate(shape, q.shape[0], q.dtype, q.device)
