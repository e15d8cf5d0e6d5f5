"""A quantised Transformer run by the compiled loops: its constants gathered once, its room kept from call to call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

from quicksilver.backends.cpu.attention import Plan
from quicksilver.backends.cpu.forward import Batch, Network, Room, num_phases, run_layers
from quicksilver.backends.cpu.linear import PackedLinear
from quicksilver.backends.cpu.matmul import Matrix
from quicksilver.backends.cpu.row_ops import Floats, Rounded, empty_rounded, whole_groups
from quicksilver.backends.cpu.threads import current_team
from quicksilver.backends.cpu.work_queue import new_turns
from quicksilver.model.attention import PagedCache, RowPlan
from quicksilver.model.lowrank import LINEARS, LowRankModules
from quicksilver.model.transformer import Layer, Transformer


class CompiledNetwork:
    """`hidden` is `Transformer.forward` over a paged cache, in one compiled call. The model must be `is_supported`."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.team = current_team()
        self._network = _collect(model)
        self._room: Room | None = None

    def hidden(self, x: Tensor, plan: RowPlan, cache: PagedCache) -> Tensor:
        """(rows, dim) -> (rows, dim) before the final norm; keys and values are written to the cache."""
        batch = _batch(self.model, plan, cache.page_size)
        num_keys = int((plan.prefix_end + plan.span_end - plan.span_start).max())
        room = self._room_for(len(x), num_keys)
        room.x[:] = x.numpy()
        k, v = cache.k.numpy(), cache.v.numpy()
        self.team.run(lambda place: run_layers(self._network, room, batch, k, v, place))
        return torch.from_numpy(room.x)

    def _room_for(self, num_rows: int, num_keys: int) -> Room:
        """Views of what is there, made larger where it is too small."""
        room = self._room
        if room is None or len(room.x) < num_rows or room.scores.shape[2] < num_keys:
            rows = max(num_rows, 16, 0 if room is None else len(room.x))
            room = self._room = self._make_room(rows, 1 << max(num_keys - 1, 511).bit_length())
        end = self.team.num_threads * num_rows
        narrow = Rounded(*(part[:end] for part in room.narrow))  # type: ignore[arg-type]
        return room._replace(
            x=room.x[:num_rows], y=room.y[:num_rows], normed=room.normed[:num_rows], mixed=room.mixed[:num_rows],
            narrow=narrow, turns=new_turns(num_phases(self.model.config.num_layers)),
        )  # fmt: skip

    def _make_room(self, num_rows: int, num_keys: int) -> Room:
        config, threads = self.model.config, self.team.num_threads
        widths = (config.q_dim + 2 * config.kv_dim, config.dim, 2 * config.ffn_dim)
        rank = whole_groups(_rank(self.model))
        return Room(
            x=_floats(num_rows, config.dim),
            y=_floats(num_rows, whole_groups(max(widths))),
            normed=_floats(num_rows, whole_groups(config.dim)),
            mixed=_floats(num_rows, whole_groups(config.q_dim)),
            active=_floats(num_rows, whole_groups(config.ffn_dim)),
            low=_floats(num_rows, rank),
            wide=empty_rounded(num_rows, max(config.dim, config.q_dim, config.ffn_dim)),
            narrow=empty_rounded(threads * num_rows, rank),
            scores=_floats(threads, config.num_heads // config.num_kv_heads, num_keys),
            turns=new_turns(0),
        )


def is_supported(model: Transformer) -> bool:
    """Whether every matrix of the model is packed, and heads fill whole vectors."""
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


def _collect(model: Transformer) -> Network:
    config = model.config
    layers: list[Layer] = list(model.layers)  # type: ignore[arg-type]
    gains = [(layer.attn_norm.weight, layer.ffn_norm.weight) for layer in layers]
    head_gains = [(layer.q_norm.weight, layer.k_norm.weight) for layer in layers] if config.qk_norm else []
    bias = [layer.qkv.bias for layer in layers] if config.qkv_bias else []
    return Network(
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


def _batch(model: Transformer, plan: RowPlan, page_size: int) -> Batch:
    cos, sin = (part[:, 0].numpy() for part in model.rope(plan.positions))
    segment = np.zeros(len(plan.positions), np.int64)
    most = max(len(s.page_ids) for s in plan.segments)
    pages = torch.stack([pad(s.page_ids, (0, most - len(s.page_ids))) for s in plan.segments])
    for index, part in enumerate(plan.segments):
        segment[part.row_start : part.row_end] = index
    ends = (plan.slots, plan.prefix_end, plan.span_start, plan.span_end)
    slots, prefix_end, span_start, span_end = (column.numpy() for column in ends)
    native = Plan(slots, prefix_end, span_start, span_end, segment, pages.numpy(), page_size)
    canvas = np.flatnonzero(plan.is_canvas.numpy()) if model.canvas is not None else np.zeros(0, np.int64)
    return Batch(native, cos, sin, np.arange(len(segment)), canvas)
