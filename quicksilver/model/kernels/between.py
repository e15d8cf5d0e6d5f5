"""What lies between two attentions in one launch (`cuda/between.cu`): how its weights are packed, its shape, its call.

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

from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from quicksilver.model.kernels.cuda.compile import Kernel, compile_kernel, find_compiler

if TYPE_CHECKING:  # Triton is not where this is tested
    from quicksilver.model.kernels.rotate import RowSlots
    from quicksilver.model.kernels.weights import LayerWeights, NetworkWeights

BETWEEN_ROWS = 32
"""The most rows of one launch; fewer go in 16."""
_BLOCK = 32
"""Of the depth, that a warp reads at once."""
_MULTIPLIERS = (8, 6)
"""Warps that share a depth: of those numbers the first that divides all depths of a model in whole blocks."""
_LONGEST = 2048
"""Of a range: 32 rows of so much input are in the registers of the warps."""
_SHARED_BYTES = 232_448
_MOST_PROGRAMS, _THREADS = 256, 256
_KINDS = ("o", "gu", "dn", "qkv")


class _Weights(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("w", "scale", "a", "b"))


_POINTERS = (
    "acc", "top", "total", "attended", "stream", "scaled", "squares", "ffn", "qkv", "ffn_gain", "next_gain", "bias",
    "q_gain", "k_gain", "k_cache", "v_cache", "angles", "positions", "slots", "gate", "sums", "counters",
)  # fmt: skip


class Arguments(ctypes.Structure):
    """`Between` of the source."""

    _fields_ = (
        ("weights", _Weights * 4),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_float) for name in ("ffn_eps", "next_eps", "head_eps")),
        *((name, ctypes.c_int) for name in ("has_layer", "has_qkv")),
    )


def cut_depth(depth: int, multipliers: int) -> int | None:
    """As few ranges as can be; None where the depth has no such cut."""
    steps = depth // (multipliers * _BLOCK)
    ranges = [n for n in range(1, steps + 1) if steps % n == 0 and depth // n <= _LONGEST]
    return ranges[0] if ranges and depth % (multipliers * _BLOCK) == 0 else None


def multipliers_for(config: ModelConfig) -> int | None:
    for count in _MULTIPLIERS:
        if all(cut_depth(depth, count) is not None for depth in depths(config).values()):
            return count
    return None


def _ranges(config: ModelConfig, depth: int) -> int:
    multipliers = multipliers_for(config)
    ranges = None if multipliers is None else cut_depth(depth, multipliers)
    assert ranges is not None, "is_suited"
    return ranges


def depths(config: ModelConfig) -> dict[str, int]:
    return {"o": config.q_dim, "gu": config.dim, "dn": config.ffn_dim, "qkv": config.dim}


def can_run(config: ModelConfig, weights: NetworkWeights) -> bool:
    """Whether shape, dtype and chip suit, and there is room for the second copy."""
    tokens = weights.tokens
    if not tokens.is_cuda or torch.cuda.get_device_capability(tokens.device) < (9, 0) or find_compiler() is None:
        return False
    has_rounded_canvas = weights.head.scale is not None and bool(weights.layers[0].canvas)
    if tokens.dtype != torch.bfloat16 or has_rounded_canvas or not is_suited(config):
        return False
    return weights.num_bytes < torch.cuda.mem_get_info(tokens.device)[0] * 0.8


def is_suited(config: ModelConfig) -> bool:
    return config.head_dim in (64, 128) and config.dim % 64 == 0 and multipliers_for(config) is not None


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kernel is compiled for."""

    config: ModelConfig
    num_rows: int
    rank: int
    is_fp8: bool
    has_bias: bool
    num_programs: int
    splits: int
    """Of attention."""
    ring: int = 2


def macros(kind: Kind) -> dict[str, int]:
    """The shape as the source wants it."""
    config = kind.config
    found = {
        "PROGRAMS": kind.num_programs, "MULTIPLIERS": multipliers_for(config) or 0, "ROWS": kind.num_rows,
        "DIM": config.dim, "FFN": config.ffn_dim, "HEADS": config.num_heads, "KV_HEADS": config.num_kv_heads,
        "HEAD_DIM": config.head_dim, "RANK": kind.rank, "SPLITS": kind.splits, "HEAD_NORM": int(config.qk_norm),
        "BIAS": int(kind.has_bias), "FP8": int(kind.is_fp8), "RING": kind.ring,
    }  # fmt: skip
    for name, linear in zip(("O", "GATE_UP", "DOWN", "QKV"), _KINDS, strict=True):
        found[f"{name}_RANGES"] = _ranges(config, depths(config)[linear])
    return found


def output_order(config: ModelConfig, kind: str) -> Tensor:
    """Rows of a matrix in the order of its tiles of 16: of gate and up eight of each, of a head eight columns and
    their partners in rotation."""
    if kind == "gu":
        return torch.arange(2 * config.ffn_dim).view(2, -1, 8).transpose(0, 1).flatten()
    if kind == "qkv":
        width = config.q_dim + 2 * config.kv_dim
        return torch.arange(width).view(-1, 2, config.head_dim // 16, 8).transpose(1, 2).flatten()
    return torch.arange(config.dim)


def pack(w: Tensor, ranges: int, multipliers: int) -> Tensor:
    """(outputs, depth), 16-bit or fp8, outputs in the order of tiles -> the same bytes as the warps read them.

    Of a block of 32 a lane reads eight in a row: of output lane / 4 of a tile and of the one eight further on."""
    is_fp8 = w.element_size() == 1
    blocks = w.shape[1] // ranges // (multipliers * _BLOCK)
    names = w.view(torch.uint8 if is_fp8 else torch.int16)
    cut = names.view(
        -1, 2, 8, ranges, multipliers, blocks, 4, 8
    )  # tile, half, output, range, warp, block, lane, weight
    inner = (2, 6, 1, 7) if is_fp8 else (1, 2, 6, 7)
    return cut.permute(3, 0, 4, 5, *inner).contiguous().flatten()


def pack_second(b: Tensor) -> Tensor:
    """An adapter's second half, (outputs, rank) with outputs in the order of tiles, as more of a linear's depth."""
    rank = -(-b.shape[1] // _BLOCK) * _BLOCK
    wide = torch.nn.functional.pad(b, (0, rank - b.shape[1])).view(torch.int16)
    return wide.view(-1, 2, 8, rank // _BLOCK, 4, 8).permute(0, 3, 1, 2, 4, 5).contiguous().flatten()


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


def pack_layer(config: ModelConfig, layer: LayerWeights) -> PackedLayer:
    found = {}
    matrices = {"o": layer.o, "gu": layer.gate_up, "dn": layer.down, "qkv": layer.qkv}
    for kind, weight in matrices.items():
        cut = (_ranges(config, weight.w.shape[1]), multipliers_for(config) or 0)
        order = output_order(config, kind).to(weight.w.device)
        names = weight.w.view(torch.uint8) if weight.scale is not None else weight.w
        pair = layer.canvas.get(kind)
        a = None if pair is None else pack(pair.a, *cut)
        b = None if pair is None else pack_second(pair.b[order])
        found[kind] = PackedLinear(pack(names[order], *cut), weight.scale, a, b)
    return PackedLayer(found)


@dataclass(frozen=True, slots=True)
class BetweenSpace:
    """What launches of one row count write besides the network's own buffers."""

    squares: Tensor
    sums: Tensor
    counters: Tensor  # (launches, ...), zero before a forward

    @classmethod
    def allocate(cls, config: ModelConfig, num_rows: int, device: torch.device | str) -> BetweenSpace:
        heads = config.num_heads + 2 * config.num_kv_heads
        ranges = max(_ranges(config, config.q_dim), _ranges(config, config.ffn_dim))

        def zeros(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(size, device=device, dtype=dtype)

        return cls(
            zeros(num_rows, config.dim // 16),
            zeros(max(heads * config.head_dim, ranges * config.dim), num_rows),
            zeros(config.num_layers + 1, 5 + heads + 2 * _MOST_PROGRAMS, dtype=torch.int32),
        )


@dataclass(frozen=True, slots=True)
class Buffers:
    """The network's own buffers that launches read and write."""

    splits: tuple[Tensor, Tensor, Tensor]
    """Attention's sums, (splits, rows, heads, head_dim), and their tops and totals."""
    attended: Tensor
    stream: Tensor
    scaled: Tensor
    ffn: Tensor
    qkv: Tensor
    where: RowSlots
    gate: Tensor


class BetweenWeights:
    """The packed weights of all layers, and the calls on them."""

    def __init__(self, config: ModelConfig, weights: NetworkWeights, cache: PagedCache, angles: Tensor) -> None:
        self.config, self.weights, self.cache, self.angles = config, weights, cache, angles
        self.layers = tuple(pack_layer(config, layer) for layer in weights.layers)
        canvas = weights.layers[0].canvas
        self.rank = canvas["qkv"].a.shape[0] if canvas else 0

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
            for at, kind in enumerate(_KINDS[:3]):
                found.weights[at] = _pointers(self.layers[index].linears[kind])
        after = layers[index + 1].attn_norm if has_qkv else self.weights.norm
        found.next_gain, found.next_eps = after.gain.data_ptr(), after.eps
        if has_qkv:
            self._add_qkv(found, index + 1)
        found.acc, found.top, found.total = (tensor.data_ptr() for tensor in buffers.splits)
        for name in ("attended", "stream", "scaled", "ffn", "qkv", "gate"):
            setattr(found, name, getattr(buffers, name).data_ptr())
        found.positions, found.slots = buffers.where.positions.data_ptr(), buffers.where.slots.data_ptr()
        for name in ("squares", "sums"):
            setattr(found, name, getattr(space, name).data_ptr())
        found.counters = space.counters[index + 1].data_ptr()
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
        first = self.weights.layers[0].qkv
        programs = torch.cuda.get_device_properties(buffers.stream.device).multi_processor_count
        rank = self.rank if is_gated else 0
        facts = (rank, first.scale is not None, first.bias is not None, programs, len(buffers.splits[0]))
        kind = with_ring(Kind(self.config, len(buffers.stream), *facts))
        _kernel(kind).launch(programs, self.arguments(index, buffers, space), overlaps)


def _pointers(linear: PackedLinear) -> _Weights:
    tensors = (linear.w, linear.scale, linear.a, linear.b)
    return _Weights(*(0 if tensor is None else tensor.data_ptr() for tensor in tensors))


MOST_SLOTS = 4
"""Of a warp's ring; as many as fit. Five, where they fit (8B in fp8), were slower."""


def shared_bytes(kind: Kind) -> int:
    """`Shared` of the source, and the stretch to its alignment."""
    found = macros(kind)
    width = 1 if kind.is_fp8 else 2
    names = {"o": "O", "gu": "GATE_UP", "dn": "DOWN", "qkv": "QKV"}
    cuts = {at: found[f"{names[at]}_RANGES"] for at in _KINDS}
    warps = found["MULTIPLIERS"]
    slot = max(depth // cuts[at] // warps * 16 * width for at, depth in depths(kind.config).items())
    tiles = _most_tiles(kind, cuts)
    waiting = max(tiles["gu"] if cuts["gu"] > 1 else 1, tiles["qkv"] if cuts["qkv"] > 1 or kind.config.qk_norm else 1)
    floats = 2 * warps * kind.num_rows * 20 + 16 * kind.num_rows * waiting + 3 * kind.num_rows
    floats += kind.num_rows * max(-(-kind.rank // _BLOCK) * _BLOCK, 8) // 2
    floats += (6 if kind.is_fp8 else 3) * 16 * max(tiles.values())
    second = 1024 * -(-kind.rank // _BLOCK) * sum(tiles.values())
    return warps * kind.ring * (slot + 8) + 4 * floats + second + 256


def _most_tiles(kind: Kind, ranges: dict[str, int]) -> dict[str, int]:
    """Tiles of a program, or of a set of programs, at most."""
    config, programs = kind.config, kind.num_programs
    width = config.q_dim + 2 * config.kv_dim
    outputs = {"o": config.dim, "gu": 2 * config.ffn_dim, "dn": config.dim, "qkv": width}
    sets = {at: programs // ranges[at] if at in ("o", "dn") else programs for at in outputs}
    return {at: -(-outputs[at] // 16 // sets[at]) for at in outputs}


def with_ring(kind: Kind) -> Kind:
    """With as long a ring as shared memory holds, but no shorter than two slots."""
    rings = [replace(kind, ring=count) for count in range(2, MOST_SLOTS + 1)]
    return [rings[0], *(found for found in rings if shared_bytes(found) <= _SHARED_BYTES)][-1]


@cache
def _kernel(kind: Kind) -> Kernel:
    capability = torch.cuda.get_device_capability()
    return compile_kernel("between", macros(kind), _THREADS, shared_bytes(kind), capability)
