"""What lies between two attentions in one launch (`cuda/layer_fused.cu`): how its weights are packed, and its call.

For up to 32 rows on chips that can copy in bulk (Hopper and later). It keeps a second copy of the matrices, in the
order in which warps read them.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quicksilver.backends.cuda.compile import Kernel, compile_kernel, find_compiler
from quicksilver.backends.cuda.kernels.int4_packing import unpack_words
from quicksilver.backends.cuda.kernels.layer_fused_shape import (
    BETWEEN_ROWS,
    BLOCK,
    KINDS,
    MOST_LAUNCHES,
    THREADS,
    Chip,
    Cut,
    Kind,
    fits,
    is_suited,
    known_cut,
    macros,
    shared_bytes,
    with_slots,
)
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig

if TYPE_CHECKING:  # Triton is not where this is tested
    from quicksilver.backends.cuda.kernels.attention import RowTables
    from quicksilver.backends.cuda.kernels.linears import Weight
    from quicksilver.backends.cuda.kernels.rope_kernel import RowSlots
    from quicksilver.backends.cuda.kernels.weights import LayerWeights, NetworkWeights, Pair


class _Weights(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("w", "scale", "a", "b"))


HANDED = ("attended", "middle", "ffn", "scaled", "middle_squares", "squares", "head_squares")
"""What programs of a launch hand to each other."""
_TABLES = ("prefix_end", "span_start", "span_end", "tiles", "pages")
_POINTERS = (
    "acc", "top", "total", *HANDED, "sums", "stale", "stream", "qkv", "ffn_gain", "next_gain", "bias", "q_gain",
    "k_gain", "k_cache", "v_cache", "angles", "positions", "slots", "gate", *_TABLES, "counters",
)  # fmt: skip


class Arguments(ctypes.Structure):
    """`Between` of the source."""

    _fields_ = (
        ("weights", _Weights * 4),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_float) for name in ("ffn_eps", "next_eps", "head_eps")),
        *(
            (name, ctypes.c_int)
            for name in ("has_layer", "has_qkv", "stale_bytes", "num_tiles", "max_pages", "page_size")
        ),
    )


def can_run(config: ModelConfig, weights: NetworkWeights, splits: int) -> bool:
    """Whether shape, dtype and chip suit, and there is room for the second copy. `splits` are attention's."""
    tokens, first = weights.tokens, weights.layers[0]
    bits = first.qkv.bits
    if not tokens.is_cuda or tokens.dtype != torch.bfloat16 or find_compiler() is None or not is_suited(config):
        return False
    rank = _rank(first)
    kind = Kind(config, BETWEEN_ROWS, rank, bits, first.qkv.bias is not None, splits, _chip(tokens.device))
    if not fits(kind) or not all(has_room(layer) for layer in weights.layers):
        return False
    return weights.num_bytes < torch.cuda.mem_get_info(tokens.device)[0] * 0.8


@cache
def _chip(device: torch.device) -> Chip:
    return Chip.of(device)


def _rank(layer: LayerWeights) -> int:
    return layer.canvas["qkv"].a.shape[0] if layer.canvas else 0


def output_order(config: ModelConfig, kind: str) -> Tensor:
    """Rows of a matrix in the order of its tiles of 16: of gate and up eight of each, of a head eight columns and
    their partners in rotation."""
    if kind == "gu":
        return torch.arange(2 * config.ffn_dim).view(2, -1, 8).transpose(0, 1).flatten()
    if kind == "qkv":
        width = config.q_dim + 2 * config.kv_dim
        return torch.arange(width).view(-1, 2, config.head_dim // 16, 8).transpose(1, 2).flatten()
    return torch.arange(config.dim)


def pack(w: Tensor, ranges: int, cut: Cut) -> Tensor:
    """(outputs, depth), 16-bit or fp8, outputs in the order of tiles -> the same bytes as the warps read them.

    Of a block of 32 a lane reads eight in a row: of output lane / 4 of a part and of the one eight further on."""
    is_fp8 = w.element_size() == 1
    blocks = w.shape[1] // ranges // (cut.multipliers * BLOCK)
    names = w.view(torch.uint8 if is_fp8 else torch.int16)
    shape = (-1, cut.team, 2, 8, ranges, cut.multipliers, blocks, 4, 8)
    inner = (3, 7, 2, 8) if is_fp8 else (2, 3, 7, 8)
    # tile, part, half, output, range, warp, block, lane, weight -> range, tile, block, warp, part, ...
    return names.view(shape).permute(4, 0, 6, 5, 1, *inner).contiguous().flatten()


def pack_fours(words: Tensor, groups: Tensor, ranges: int, cut: Cut) -> Tensor:
    """Weights of four bits, words (outputs, depth / 4) and groups (outputs, depth / 32) of `words.py`, as warps read
    them: of each block the weights of a part, and behind them the groups of its outputs.

    A lane's eight weights are 32 bits, of each pair the first in the lower half and the other in the upper."""
    blocks = groups.shape[1] // ranges // cut.multipliers
    shape = (-1, cut.team, 2, 8, ranges, cut.multipliers, blocks)
    lanes = unpack_words(words).view(*shape, 4, 8).permute(4, 0, 6, 5, 1, 3, 7, 2, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
    eights = (lanes[..., ::2] | (lanes[..., 1::2] << 4)).to(torch.uint8).flatten(5)
    behind = groups.view(*shape).permute(4, 0, 6, 5, 1, 3, 2).contiguous()
    return torch.cat((eights, behind.flatten(5).view(torch.uint8)), -1).flatten()


def pack_weight(weight: Weight, order: Tensor, ranges: int, cut: Cut) -> Tensor:
    """A linear's weights with outputs in the order of tiles, as bytes or 16-bit numbers."""
    if weight.groups is not None:
        return pack_fours(weight.w[order], weight.groups[order], ranges, cut)
    names = weight.w.view(torch.uint8) if weight.bits == 8 else weight.w
    return pack(names[order], ranges, cut)


def pack_second(b: Tensor) -> Tensor:
    """An adapter's second half, (outputs, rank) with outputs in the order of tiles, as more of a linear's depth."""
    rank = -(-b.shape[1] // BLOCK) * BLOCK
    wide = torch.nn.functional.pad(b, (0, rank - b.shape[1])).view(torch.int16)
    return wide.view(-1, 2, 8, rank // BLOCK, 4, 8).permute(0, 3, 1, 2, 4, 5).contiguous().flatten()


def _whole_tiles(a: Tensor, cut: Cut) -> Tensor:
    """An adapter's first half, (rank, depth), with more outputs of zero."""
    return torch.nn.functional.pad(a, (0, 0, 0, -a.shape[0] % (16 * cut.team)))


@dataclass(frozen=True, slots=True)
class PackedLinear:
    w: Tensor
    scale: Tensor | None
    a: Tensor | None
    b: Tensor | None


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """A layer's linears by kind."""

    linears: dict[str, PackedLinear]


def matrices(layer: LayerWeights) -> dict[str, Weight]:
    """By kind."""
    return {"o": layer.o, "gu": layer.gate_up, "dn": layer.down, "qkv": layer.qkv}


def second_half(pair: Pair, weight: Weight) -> Tensor:
    """An adapter's B as it is added to sums that an output's scale still comes behind; fp16 beside few bits."""
    return pair.b if weight.scale is None else (pair.b.float() / weight.scale[:, None]).half()


def has_room(layer: LayerWeights) -> bool:
    """Whether fp16 holds the adapter's second halves: beside outputs of fp8 that are nearly all zero it might not."""
    found = matrices(layer)
    return all(bool(second_half(pair, found[kind]).isfinite().all()) for kind, pair in layer.canvas.items())


def pack_layer(config: ModelConfig, layer: LayerWeights) -> PackedLayer:
    found, cut = {}, known_cut(config)
    for kind, weight in matrices(layer).items():
        ranges = cut.ranges[kind]
        order = output_order(config, kind).to(weight.w.device)
        pair = layer.canvas.get(kind)
        a = b = None
        if pair is not None:
            a = pack(_whole_tiles(pair.a if weight.scale is None else pair.a.half(), cut), ranges, cut)
            b = pack_second(second_half(pair, weight)[order])
        found[kind] = PackedLinear(pack_weight(weight, order, ranges, cut), weight.scale, a, b)
    return PackedLayer(found)


_NUM_COUNTERS = 4
_UNSET = 255
"""What every byte is that a program waits for."""


@dataclass(frozen=True, slots=True)
class BetweenSpace:
    """What launches of one row count write besides the network's own buffers."""

    squares: Tensor  # (rows, dim / 16): of the embedding
    sums: Tensor
    handed: Tensor
    """(3, bytes): a launch's own, unset by the one before it. Launches take the first two in turn; the first of a
    forward has the third, which the last unsets for it, so that it does not matter how many there are."""
    sizes: dict[str, int]
    counters: Tensor  # (launches, ...), zero before a forward

    @classmethod
    def allocate(cls, config: ModelConfig, num_rows: int, device: torch.device | str) -> BetweenSpace:
        heads = config.num_heads + 2 * config.num_kv_heads
        ranges = max(known_cut(config).ranges[linear] for linear in ("o", "dn"))
        inputs = [2 * width for width in (config.q_dim, config.dim, config.ffn_dim, config.dim)]
        squares_of = [4 * (width // 16) for width in (config.dim, config.dim, heads * config.head_dim)]
        sizes = {name: width * num_rows for name, width in zip(HANDED, (*inputs, *squares_of), strict=True)}
        unset = torch.full((3, sum(sizes.values())), _UNSET, device=device, dtype=torch.uint8)
        sums = torch.full((ranges * config.dim * num_rows * 4,), _UNSET, device=device, dtype=torch.uint8)
        squares = torch.zeros(num_rows, config.dim // 16, device=device)
        counters = torch.zeros(config.num_layers + 1, _NUM_COUNTERS, device=device, dtype=torch.int32)
        return cls(squares, sums, unset, sizes, counters)

    def handed_to(self, launch: int) -> dict[str, Tensor]:
        """By name, as bytes."""
        parts = self._of(launch).split(list(self.sizes.values()))
        return dict(zip(self.sizes, parts, strict=True))

    def stale_at(self, launch: int) -> Tensor:
        """What that launch is to unset: all that the next one will be handed."""
        return self._of(launch + 1 if launch + 1 < len(self.counters) else 0)

    def _of(self, launch: int) -> Tensor:
        return self.handed[launch % 2 if launch else 2]


@dataclass(frozen=True, slots=True)
class Buffers:
    """The network's own buffers that launches read and write."""

    splits: tuple[Tensor, Tensor, Tensor]
    """Attention's sums, (splits, rows, heads, head_dim), and their tops and totals."""
    stream: Tensor
    scaled: Tensor
    """The embedding times the first norm's gain."""
    qkv: Tensor
    where: RowSlots
    gate: Tensor
    tables: RowTables

    @property
    def attended(self) -> int:
        """Rows of attention, of which these may be a part."""
        acc = self.splits[0]
        return acc.stride(0) // acc.stride(1)

    def part(self, start: int, end: int) -> Buffers:
        """Some of the rows. Keys of the attention behind them all are asked for with the last."""
        if (start, end) == (0, len(self.stream)):
            return self
        at, tables = slice(start, end), self.tables
        seen = {name: getattr(tables, name)[at] for name in ("prefix_end", "span_start", "span_end")}
        if end < len(self.stream):
            tables = replace(tables, tiles=tables.tiles[:0], forks=None)
        acc, top, total = (split[:, at] for split in self.splits)
        where = replace(self.where, positions=self.where.positions[at], slots=self.where.slots[at])
        rows = {name: getattr(self, name)[at] for name in ("stream", "scaled", "qkv", "gate")}
        return Buffers((acc, top, total), where=where, tables=replace(tables, **seen), **rows)


class BetweenWeights:
    """The packed weights of all layers, and the calls on them."""

    def __init__(self, config: ModelConfig, weights: NetworkWeights, cache: PagedCache, angles: Tensor) -> None:
        self.config, self.weights, self.cache, self.angles = config, weights, cache, angles
        self.layers = tuple(pack_layer(config, layer) for layer in weights.layers)
        self.rank = _rank(weights.layers[0])
        self.most_rows = BETWEEN_ROWS * MOST_LAUNCHES[weights.layers[0].qkv.bits]

    def space(self, num_rows: int) -> BetweenSpace:
        return BetweenSpace.allocate(self.config, num_rows, self.weights.tokens.device)

    def arguments(self, index: int, buffers: Buffers, space: BetweenSpace) -> Arguments:
        """Of the launch behind attention `index`, which ends with the qkv of the layer after it; -1 comes first."""
        layers, count = self.weights.layers, len(self.layers)
        has_layer, has_qkv = index >= 0, index + 1 < count
        found = Arguments(has_layer=int(has_layer), has_qkv=int(has_qkv))
        if has_layer:
            norm = layers[index].ffn_norm
            found.ffn_gain, found.ffn_eps = norm.gain.data_ptr(), norm.eps
            for at, kind in enumerate(KINDS[:3]):
                found.weights[at] = _pointers(self.layers[index].linears[kind])
        after = layers[index + 1].attn_norm if has_qkv else self.weights.norm
        found.next_gain, found.next_eps = after.gain.data_ptr(), after.eps
        if has_qkv:
            self._add_qkv(found, index + 1)
        found.acc, found.top, found.total = (tensor.data_ptr() for tensor in buffers.splits)
        found.positions, found.slots = buffers.where.positions.data_ptr(), buffers.where.slots.data_ptr()
        stale = space.stale_at(index + 1)
        tensors = {name: getattr(buffers, name) for name in ("stream", "qkv", "gate")}
        tensors |= {name: getattr(buffers.tables, name) for name in _TABLES}
        tensors |= space.handed_to(index + 1) | {"stale": stale, "sums": space.sums}
        tensors["counters"] = space.counters[index + 1]
        if not has_layer:
            tensors |= {"scaled": buffers.scaled, "squares": space.squares}
        for name, tensor in tensors.items():
            setattr(found, name, tensor.data_ptr())
        found.stale_bytes, found.num_tiles = len(stale), buffers.tables.num_shared
        found.max_pages, found.page_size = buffers.tables.pages.stride(0), self.cache.page_size
        return found

    def _add_qkv(self, found: Arguments, index: int) -> None:
        layer = self.weights.layers[index]
        found.weights[3] = _pointers(self.layers[index].linears["qkv"])
        found.k_cache, found.v_cache = self.cache.k[index].data_ptr(), self.cache.v[index].data_ptr()
        found.angles = self.angles.data_ptr()
        if layer.qkv.bias is not None:
            found.bias = layer.qkv.bias.data_ptr()
        if layer.head_norms is not None:
            found.q_gain, found.k_gain = layer.head_norms.q.data_ptr(), layer.head_norms.k.data_ptr()
            found.head_eps = layer.head_norms.eps

    def launch(self, index: int, buffers: Buffers, space: BetweenSpace, is_gated: bool, overlaps: bool) -> None:
        first, chip = self.weights.layers[0].qkv, _chip(buffers.stream.device)
        facts = (self.rank if is_gated else 0, first.bits, first.bias is not None, len(buffers.splits[0]))
        kind = with_slots(Kind(self.config, len(buffers.stream), *facts, chip, buffers.attended))
        assert kind is not None, "can_run"
        _kernel(kind).launch(kind.num_programs, self.arguments(index, buffers, space), overlaps)


def _pointers(linear: PackedLinear) -> _Weights:
    tensors = (linear.w, linear.scale, linear.a, linear.b)
    return _Weights(*(0 if tensor is None else tensor.data_ptr() for tensor in tensors))


# The source file (KERNEL.cu) and the function in it.
KERNEL = "layer_fused"


@cache
def _kernel(kind: Kind) -> Kernel:
    return compile_kernel(KERNEL, macros(kind), THREADS, shared_bytes(kind), kind.chip.capability)
