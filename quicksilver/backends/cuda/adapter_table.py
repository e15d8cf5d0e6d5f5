"""The row adapters on the device: pages of ranks in fixed pools, given to adapters as they come and go.

A page holds 16 ranks of A and B of every linear and layer, so an adapter takes as many pages as its largest rank needs.
The pools never move, so captured graphs read them. `AdapterCache` decides which adapters stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import linear

from quicksilver.backends.cuda.kernels.adapter_kernels import NUM_COUNTS, PAGE_RANKS
from quicksilver.backends.cuda.kernels.adapter_rows import MAX_PAGES, AdapterPools
from quicksilver.errors import CheckpointRefused
from quicksilver.model.adapters import stack_adapters
from quicksilver.model.config import ModelConfig
from quicksilver.model.lowrank import LINEARS, Adapter, linear_shapes
from quicksilver.model.row_adapters import MAX_RANK, AdapterRows, RowAdapter


@dataclass(slots=True)
class _Held:
    """An adapter in the form of the table. `pages` is empty before it is placed, `packed` after."""

    counts: list[int]  # pages of each linear
    packed: list[tuple[Tensor, Tensor]]  # by linear: A (pages, layers, 16, in) and B (pages, layers, 16, out)
    pages: list[int] = field(default_factory=list)
    slot: int = -1

    @property
    def num_pages(self) -> int:
        return max(self.counts)


@dataclass(frozen=True, slots=True)
class TablePair:
    """A pair of a placed adapter, for forwards without kernels."""

    held: _Held
    pools: AdapterPools
    index: int
    name: str

    def delta(self, x: Tensor) -> Tensor:
        """B (A x)"""
        pages = torch.tensor(self.held.pages, device=x.device)
        a, b = (pool[self.name][pages, self.index].flatten(0, 1) for pool in (self.pools.a, self.pools.b))
        return linear(x, a.to(x.dtype)) @ b.to(x.dtype)


class AdapterTable:
    def __init__(self, config: ModelConfig, num_pages: int, device: torch.device, dtype: torch.dtype) -> None:
        self._config, self._dtype = config, dtype
        self._shapes = adapted_shapes(config)

        def pool(dim: int) -> Tensor:
            return torch.zeros(num_pages, config.num_layers, PAGE_RANKS, dim, device=device, dtype=dtype)

        lines = torch.zeros(num_pages, NUM_COUNTS + MAX_PAGES, dtype=torch.int32, device=device)
        a, b = ({name: pool(shape[part]) for name, shape in self._shapes.items()} for part in (1, 0))
        self.pools = AdapterPools(a, b, lines)
        self.page_bytes = page_bytes(config, dtype)
        self._free, self._free_slots = list(range(num_pages)), list(range(num_pages))
        self._held: WeakKeyDictionary[RowAdapter, _Held] = WeakKeyDictionary()
        self._lock = Lock()
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @property
    def num_slots(self) -> int:
        return len(self.pools.lines)

    @property
    def num_bytes(self) -> int:
        return self.num_slots * self.page_bytes

    def convert(self, adapter: Adapter) -> RowAdapter:
        """The adapter in pages on the host. It computes nothing before it is placed."""
        if adapter.embedding_ids is not None:
            raise CheckpointRefused(
                "adapter replaces token embeddings, which the CUDA kernels cannot do for single requests; merge it "
                "with --adapter PATH, or start with --no-cuda-graphs"
            )
        canvas = None if adapter.canvas is None else self._pack(stack_adapters([adapter, adapter.canvas]), None)
        return self._pack(adapter, canvas)

    def place(self, adapter: RowAdapter) -> None:
        """Copies a converted adapter into free pages, of which there must be enough. Forwards that are launched
        afterwards can use the adapter."""
        for one in _with_canvas(adapter):
            held = self._held[one]
            with self._lock:
                held.pages = [self._free.pop() for _ in range(held.num_pages)]
                held.slot = self._free_slots.pop()
            self._copy(held)
            held.packed.clear()

    def drop(self, adapter: RowAdapter) -> None:
        """Frees the pages of an adapter that no request uses. Rounds in flight may still read them; their results for
        requests that have ended are discarded."""
        for one in _with_canvas(adapter):
            held = self._held.pop(one, None)
            if held is not None and held.slot >= 0:
                with self._lock:
                    self._free += held.pages
                    self._free_slots.append(held.slot)

    def slot_of(self, adapter: RowAdapter | None) -> int:
        """-1 without an adapter."""
        return -1 if adapter is None else self._held[adapter].slot

    def slots_of_rows(self, row_adapters: Sequence[AdapterRows], count: int) -> npt.NDArray[np.int32]:
        """The slot of every row of a bucket of `count` rows."""
        slots = np.full(count, -1, dtype=np.int32)
        if row_adapters:
            rows = [one.rows.numpy() for one in row_adapters]
            own = [self.slot_of(one.adapter) for one in row_adapters]
            slots[np.concatenate(rows)] = np.repeat(np.array(own, dtype=np.int32), [len(part) for part in rows])
        return slots

    def _pack(self, adapter: Adapter, canvas: RowAdapter | None) -> RowAdapter:
        ranks = dict.fromkeys(LINEARS, 1)
        for index, name, pair in adapter.low_rank():
            ranks[name] = max(ranks[name], pair.A.shape[0])
            self._check_rank(index, name, ranks[name])
        counts = [-(-rank // PAGE_RANKS) for rank in ranks.values()]
        with torch.inference_mode():
            packed = [self._packed(adapter, name, max(counts)) for name in self._shapes]
        held = _Held(counts, packed)
        layers: list[dict[str, TablePair]] = [{} for _ in range(self._config.num_layers)]
        for index, name, _ in adapter.low_rank():
            layers[index][name] = TablePair(held, self.pools, index, name)
        num_bytes = held.num_pages * self.page_bytes + (canvas.num_bytes if canvas is not None else 0)
        made = RowAdapter(layers, max(ranks.values()), num_bytes, canvas=canvas)
        self._held[made] = held
        return made

    def _check_rank(self, index: int, name: str, rank: int) -> None:
        if rank > MAX_RANK:
            raise CheckpointRefused(
                f"adapter layer {index} {name} has rank {rank} with its pairs for canvas rows, at most {MAX_RANK} is "
                "served; train it with a lower rank, or merge it with --adapter PATH"
            )
        if rank > PAGE_RANKS * self.num_slots:
            raise CheckpointRefused(
                f"adapter layer {index} {name} has rank {rank}, and the memory for adapters on the GPU holds a rank of "
                f"{PAGE_RANKS * self.num_slots}; raise adapter_bytes, or merge the adapter with --adapter PATH"
            )

    def _packed(self, adapter: Adapter, name: str, num_pages: int) -> tuple[Tensor, Tensor]:
        out_dim, in_dim = self._shapes[name]
        rank, layers = num_pages * PAGE_RANKS, self._config.num_layers
        a, b = (torch.zeros(layers, rank, dim, dtype=self._dtype) for dim in (in_dim, out_dim))
        for index, found, pair in adapter.low_rank():
            if found == name:
                a[index, : pair.A.shape[0]], b[index, : pair.A.shape[0]] = pair.A.detach(), pair.B.detach().T
        by_page = [part.unflatten(1, (num_pages, PAGE_RANKS)).transpose(0, 1).contiguous() for part in (a, b)]
        return by_page[0], by_page[1]

    @torch.inference_mode()
    def _copy(self, held: _Held) -> None:
        line = torch.tensor([*held.counts, *held.pages, *[0] * (MAX_PAGES - len(held.pages))], dtype=torch.int32)
        with torch.cuda.stream(self._stream):
            for name, packed in zip(self._shapes, held.packed, strict=True):
                for pool, source in zip((self.pools.a[name], self.pools.b[name]), packed, strict=True):
                    for page, values in zip(held.pages, source, strict=True):
                        pool[page].copy_(values)
            self.pools.lines[held.slot].copy_(line)
        if self._stream is not None:
            self._stream.synchronize()


def adapted_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(out, in) of the linears that adapters change. Experts have no adapters."""
    shapes = linear_shapes(config)
    has_dense = config.moe is None or config.moe.num_dense > 0
    return shapes if has_dense else {name: shapes[name] for name in ("qkv", "o")}


def page_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Memory of 16 ranks of an adapter of all linears."""
    widths = sum(sum(shape) for shape in adapted_shapes(config).values())
    return config.num_layers * PAGE_RANKS * widths * dtype.itemsize


def _with_canvas(adapter: RowAdapter) -> Iterator[RowAdapter]:
    yield adapter
    if adapter.canvas is not None:
        yield adapter.canvas
