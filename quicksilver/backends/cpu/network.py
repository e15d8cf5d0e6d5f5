"""Runs a packed Transformer with the compiled forward: collects its constants once and keeps its workspace."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

from quicksilver.backends.cpu.attention import RowArrays
from quicksilver.backends.cpu.forward import BatchArrays, ForwardBuffers, NetworkArrays, num_phases, run_layers
from quicksilver.backends.cpu.kv_page import pages_of
from quicksilver.backends.cpu.linear import PackedLinear
from quicksilver.backends.cpu.matmul import Matrix
from quicksilver.backends.cpu.matmul_tile import GROUP_LEN
from quicksilver.backends.cpu.row_ops import Floats, QuantisedRows, empty_quantised, padded_len
from quicksilver.backends.cpu.threads import shared_pool
from quicksilver.backends.cpu.work_queue import new_counters
from quicksilver.model.attention import PagedCache, RowPlan
from quicksilver.model.lowrank import LINEARS, LowRankModules
from quicksilver.model.row_adapters import AdapterRows, RowAdapter
from quicksilver.model.transformer import Layer, Transformer

# The smallest workspace: buffers are allocated for at least this many rows and keys, and grow when needed.
_MIN_ROWS, _MIN_KEYS = 16, 512
# Rows that attend together, if the scores of one thread have room for them. Every thread gets at least so many blocks.
_BLOCK_ROWS, _SCORES_PER_THREAD, _BLOCKS_PER_THREAD = 8, 1 << 20, 2
# Numbers between the scores of two heads: without them, all would lie in the same set of the first-level cache.
_SCORE_PADDING = 16


class CompiledNetwork:
    """`hidden` is `Transformer.forward` over a paged cache, in one compiled call. The model must be `is_supported`."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.pool = shared_pool()
        self._network = _collect(model)
        self._space: ForwardBuffers | None = None
        self._no_adapters = np.zeros((model.config.num_layers, len(LINEARS), 0, 2, len(Matrix._fields)), np.int64)
        self._adapter_tables: WeakKeyDictionary[RowAdapter, NDArray[np.int64]] = WeakKeyDictionary()

    def hidden(self, x: Tensor, plan: RowPlan, cache: PagedCache, row_adapters: Sequence[AdapterRows] = ()) -> Tensor:
        """(rows, dim) -> (rows, dim) before the final norm; keys and values are written to the cache.

        The result is a view of the workspace: the next call overwrites it.
        """
        num_keys = int((plan.prefix_end + plan.span_end - plan.span_start).max())
        row_rank = max((padded_len(one.adapter.rank) for one in row_adapters), default=0)
        space = self._workspace(len(x), num_keys, row_rank)
        block_rows = self._block_rows(len(x), space.scores.shape[1])
        batch = _batch(self.model, plan, cache.page_size, block_rows, self._adapter_arrays(row_adapters))
        space.x[:] = x.numpy()
        k, v = pages_of(cache)
        self.pool.run(lambda thread: run_layers(self._network, space, batch, k, v, thread))
        return torch.from_numpy(space.x)

    def _block_rows(self, num_rows: int, num_scores: int) -> int:
        """Rows that attend together: few enough that every thread has work, and that their scores fit."""
        config = self.model.config
        shared = num_rows * config.num_kv_heads // (_BLOCKS_PER_THREAD * self.pool.num_threads)
        return max(min(shared, num_scores * config.num_kv_heads // config.num_heads), 1)

    def _adapter_arrays(self, row_adapters: Sequence[AdapterRows]) -> AdapterArrays:
        if not row_adapters:
            return AdapterArrays(self._no_adapters, np.zeros(0, np.int64), np.zeros(1, np.int64))
        for one in row_adapters:
            if one.adapter not in self._adapter_tables:
                self._adapter_tables[one.adapter] = _adapter_matrices(one.adapter)
        tables = [self._adapter_tables[one.adapter] for one in row_adapters]
        ends = np.cumsum([0, *(len(one.rows) for one in row_adapters)])
        return AdapterArrays(np.stack(tables, axis=2), torch.cat([one.rows for one in row_adapters]).numpy(), ends)

    def _workspace(self, num_rows: int, num_keys: int, row_rank: int) -> ForwardBuffers:
        """Views of the workspace, which is reallocated if it is too small; new counters."""
        space = self._space or self._allocate(_MIN_ROWS, _MIN_KEYS, GROUP_LEN)
        sizes = (len(space.x), space.scores.shape[2] - _SCORE_PADDING, space.row_low_rank.shape[1])
        if self._space is None or len(space.x) < num_rows or sizes[1] < num_keys or sizes[2] < row_rank:
            num_keys = 1 << (max(num_keys, sizes[1]) - 1).bit_length()
            space = self._space = self._allocate(max(num_rows, sizes[0]), num_keys, max(row_rank, sizes[2]))
        end = self.pool.num_threads * num_rows
        low_rank_inputs = QuantisedRows(*(part[:end] for part in space.low_rank_inputs))  # type: ignore[arg-type]
        return space._replace(
            x=space.x[:num_rows], y=space.y[:num_rows], normed=space.normed[:num_rows],
            attended=space.attended[:num_rows], low_rank_inputs=low_rank_inputs,
            counters=new_counters(num_phases(self.model.config.num_layers), self.pool.num_threads),
        )  # fmt: skip

    def _allocate(self, num_rows: int, num_keys: int, row_rank: int) -> ForwardBuffers:
        config, threads = self.model.config, self.pool.num_threads
        widths = (config.q_dim + 2 * config.kv_dim, config.dim, 2 * config.ffn_dim)
        rank, group = padded_len(_rank(self.model)), config.num_heads // config.num_kv_heads
        block_rows = max(min(_SCORES_PER_THREAD // (group * num_keys), _BLOCK_ROWS), 1)
        return ForwardBuffers(
            x=_floats(num_rows, config.dim),
            y=_floats(num_rows, padded_len(max(widths))),
            normed=_floats(num_rows, padded_len(config.dim)),
            attended=_floats(num_rows, padded_len(config.q_dim)),
            activated=_floats(num_rows, padded_len(config.ffn_dim)),
            low_rank=_floats(num_rows, rank),
            inputs=empty_quantised(num_rows, max(config.dim, config.q_dim, config.ffn_dim)),
            low_rank_inputs=empty_quantised(threads * num_rows, rank),
            row_low_rank=_floats(num_rows, row_rank),
            row_low_rank_inputs=empty_quantised(threads * num_rows, row_rank),
            scores=_floats(threads, block_rows * group, num_keys + _SCORE_PADDING),
            counters=new_counters(0, threads),
        )


def is_supported(model: Transformer) -> bool:
    """Whether every matrix of the model is packed, and heads fill whole vectors."""
    if not model.config.is_plain:
        return False
    linears = [linear for layer in model.layers for linear in _linears(layer)]
    if model.canvas is not None:
        pairs = [pair for _, _, pair in model.canvas.low_rank()]
        if not all(isinstance(pair, LowRankModules) for pair in pairs):
            return False
        linears += [half for pair in pairs for half in (pair.a, pair.b)]  # type: ignore[misc]
    return model.config.head_dim % 16 == 0 and all(isinstance(linear, PackedLinear) for linear in linears)


def _linears(layer: nn.Module) -> list[nn.Module]:
    return [getattr(layer, name) for name in LINEARS.values()]


def _floats(*shape: int) -> Floats:
    return np.zeros(shape, np.float32)


def _rank(model: Transformer) -> int:
    if model.canvas is None:
        return 1
    return max(int(pair.a.out_dim) for _, _, pair in model.canvas.low_rank())  # type: ignore[union-attr, arg-type]


def _collect(model: Transformer) -> NetworkArrays:
    config = model.config
    layers: list[Layer] = list(model.layers)  # type: ignore[arg-type]
    gains = [(layer.attn_norm.weight, layer.ffn_norm.weight) for layer in layers]
    head_gains = [(layer.q_norm.weight, layer.k_norm.weight) for layer in layers] if config.qk_norm else []
    bias = [layer.qkv.bias for layer in layers] if config.qkv_bias else []
    return NetworkArrays(
        matrices=_matrices(model),
        gains=_stacked(gains, (2, config.dim)),
        head_gains=_stacked(head_gains, (2, config.head_dim)),
        bias=_stacked([(b,) for b in bias], (config.q_dim + 2 * config.kv_dim,)),
        heads=(config.num_heads, config.num_kv_heads),
        ffn_dim=config.ffn_dim,
        eps=config.norm_eps,
    )


def _stacked(rows: Sequence[tuple[Tensor, ...]], shape: tuple[int, ...]) -> Floats:
    parts = [torch.stack(row).detach().float().numpy().reshape(shape) for row in rows]
    return np.stack(parts) if parts else np.zeros((0, *shape), np.float32)


def _matrices(model: Transformer) -> NDArray[np.int64]:
    table = np.zeros((model.config.num_layers, len(LINEARS), 3, len(Matrix._fields)), np.int64)
    for index, layer in enumerate(model.layers):
        for number, (name, attribute) in enumerate(LINEARS.items()):
            table[index, number, 0] = getattr(layer, attribute).matrix
            if model.canvas is not None:
                pair = model.canvas.layers[index][name]  # type: ignore[index]
                table[index, number, 1], table[index, number, 2] = pair.a.matrix, pair.b.matrix
    return table


class AdapterArrays(NamedTuple):
    """The row adapters of a forward, as in `BatchArrays`."""

    matrices: NDArray[np.int64]
    rows: NDArray[np.int64]
    ends: NDArray[np.int64]


def _adapter_matrices(adapter: RowAdapter) -> NDArray[np.int64]:
    """(layers, 4 linears, A and B, 5); zeros where the adapter has no pair."""
    table = np.zeros((len(adapter.layers), len(LINEARS), 2, len(Matrix._fields)), np.int64)
    for index, layer in enumerate(adapter.layers):
        for number, name in enumerate(LINEARS):
            pair = layer.get(name)
            for half, linear in enumerate((pair.a, pair.b) if isinstance(pair, LowRankModules) else ()):
                assert isinstance(linear, PackedLinear)
                table[index, number, half] = linear.matrix
    return table


def _batch(model: Transformer, plan: RowPlan, page_size: int, block_rows: int, adapters: AdapterArrays) -> BatchArrays:
    cos, sin = (part[:, 0].numpy() for part in model.rope(plan.positions))
    segment = np.zeros(len(plan.positions), np.int64)
    most = max(len(s.page_ids) for s in plan.segments)
    pages = torch.stack([pad(s.page_ids, (0, most - len(s.page_ids))) for s in plan.segments])
    for index, part in enumerate(plan.segments):
        segment[part.row_start : part.row_end] = index
    ends = (plan.slots, plan.prefix_end, plan.span_start, plan.span_end)
    slots, prefix_end, span_start, span_end = (column.numpy() for column in ends)
    arrays = RowArrays(slots, prefix_end, span_start, span_end, segment, pages.numpy(), page_size)
    canvas = np.flatnonzero(plan.is_canvas.numpy()) if model.canvas is not None else np.zeros(0, np.int64)
    blocks = row_blocks(segment, block_rows)
    return BatchArrays(arrays, cos, sin, np.arange(len(segment)), blocks, canvas, *adapters)


def row_blocks(segment: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Where blocks of at most `most` adjacent rows of one segment begin, and the end of the last."""
    changes = np.flatnonzero(np.diff(segment)) + 1
    runs = [0, *changes.tolist(), len(segment)]
    starts = [start for first, end in pairwise(runs) for start in range(first, end, most)]
    return np.array([*starts, len(segment)], np.int64)
