"""Everything between two attentions in one launch (`src/layer_fused.cu`): weight packing, arguments, launch.

For up to 32 rows on GPUs with bulk copies (Hopper and later). Keeps a second copy of the matrices, in the order in
which warps read them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quicksilver.backends.cuda.compile import Kernel, compile_binary, find_compiler, load_kernel
from quicksilver.backends.cuda.kernels.int4_packing import unpack_words
from quicksilver.backends.cuda.kernels.layer_fused_shape import (
    BLOCK,
    LAYER_FUSED_ROWS,
    LINEARS,
    MAX_LAUNCHES,
    THREADS,
    GpuProperties,
    KernelSpec,
    KSplit,
    fits,
    is_supported,
    k_split_of,
    macros,
    shared_bytes,
    with_stages,
)
from quicksilver.backends.cuda.parallel_compile import active_compilation
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig

if TYPE_CHECKING:  # these modules import Triton, which the emulated tests do without
    from quicksilver.backends.cuda.kernels.attention import RowTables
    from quicksilver.backends.cuda.kernels.linears import Weight
    from quicksilver.backends.cuda.kernels.rope_kernel import RowSlots
    from quicksilver.backends.cuda.kernels.weights import LayerWeights, LoraPair, NetworkWeights


class _Weights(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("w", "scale", "a", "b"))


# Buffers that CTAs of a launch exchange by sentinel polling.
EXCHANGED = ("attended", "ffn_input", "ffn", "qkv_input", "ffn_squares", "qkv_squares", "head_squares")
_TABLES = ("prefix_end", "span_start", "span_end", "tiles", "pages")
_POINTERS = (
    "acc", "top", "total", *EXCHANGED, "sums", "next_exchange", "stream", "qkv", "ffn_gain", "next_gain", "bias",
    "q_gain", "k_gain", "k_cache", "v_cache", "angles", "positions", "slots", "gate", *_TABLES, "counters",
)  # fmt: skip


class LayerFusedArguments(ctypes.Structure):
    """`LayerArgs` of the source."""

    _fields_ = (
        ("weights", _Weights * 4),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_float) for name in ("ffn_eps", "next_eps", "head_eps")),
        *(
            (name, ctypes.c_int)
            for name in ("has_layer", "has_qkv", "exchange_bytes", "num_tiles", "max_pages", "page_size")
        ),
    )


def can_run_layer_fused(config: ModelConfig, weights: NetworkWeights, splits: int) -> bool:
    """Whether the kernel supports the shape, dtype and GPU, and there is memory for the second copy. `splits`: of
    attention."""
    tokens, first = weights.tokens, weights.layers[0]
    if not config.is_plain:
        return False
    bits = first.qkv.bits
    if not tokens.is_cuda or tokens.dtype != torch.bfloat16 or find_compiler() is None or not is_supported(config):
        return False
    rank = _rank(first)
    spec = KernelSpec(config, LAYER_FUSED_ROWS, rank, bits, first.qkv.bias is not None, splits, _gpu(tokens.device))
    if not fits(spec) or not all(adapter_fits_fp16(layer) for layer in weights.layers):
        return False
    return weights.num_bytes < torch.cuda.mem_get_info(tokens.device)[0] * 0.8


@cache
def _gpu(device: torch.device) -> GpuProperties:
    return GpuProperties.of(device)


def _rank(layer: LayerWeights) -> int:
    return layer.canvas["qkv"].a.shape[0] if layer.canvas else 0


def tile_order(config: ModelConfig, name: str) -> Tensor:
    """Output rows in the order of the 16-row subtiles: eight gate rows and their up rows; of qkv, eight columns of a
    head and their RoPE partners."""
    if name == "gu":
        return torch.arange(2 * config.ffn_dim).view(2, -1, 8).transpose(0, 1).flatten()
    if name == "qkv":
        width = config.q_dim + 2 * config.kv_dim
        return torch.arange(width).view(-1, 2, config.head_dim // 16, 8).transpose(1, 2).flatten()
    return torch.arange(config.dim)


def pack(w: Tensor, ranges: int, split: KSplit) -> Tensor:
    """(outputs, K) in 16 bits or fp8, outputs in tile order -> the same bytes in the order in which warps read them.

    Of a k-block of 32 a lane reads eight consecutive weights of outputs lane / 4 and lane / 4 + 8 of a subtile."""
    is_fp8 = w.element_size() == 1
    blocks = w.shape[1] // ranges // (split.mma_warps * BLOCK)
    raw = w.view(torch.uint8 if is_fp8 else torch.int16)
    shape = (-1, split.cluster, 2, 8, ranges, split.mma_warps, blocks, 4, 8)
    inner = (3, 7, 2, 8) if is_fp8 else (2, 3, 7, 8)
    # tile, subtile, half, output, range, warp, block, lane, weight -> range, tile, block, warp, subtile, ...
    return raw.view(shape).permute(4, 0, 6, 5, 1, *inner).contiguous().flatten()


def pack_int4(words: Tensor, groups: Tensor, ranges: int, split: KSplit) -> Tensor:
    """int4 weights of `int4_packing.py`, words (outputs, K / 4) and groups (outputs, K / 32), in the order in which
    warps read them: per k-block the weights of a subtile, then the groups of its outputs.

    A lane's eight weights are 32 bits: the first of each pair in the lower half, the second in the upper half."""
    blocks = groups.shape[1] // ranges // split.mma_warps
    shape = (-1, split.cluster, 2, 8, ranges, split.mma_warps, blocks)
    by_lane = unpack_words(words).view(*shape, 4, 8).permute(4, 0, 6, 5, 1, 3, 7, 2, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
    weights_8 = (by_lane[..., ::2] | (by_lane[..., 1::2] << 4)).to(torch.uint8).flatten(5)
    after = groups.view(*shape).permute(4, 0, 6, 5, 1, 3, 2).contiguous()
    return torch.cat((weights_8, after.flatten(5).view(torch.uint8)), -1).flatten()


def pack_weight(weight: Weight, order: Tensor, ranges: int, split: KSplit) -> Tensor:
    """Pack a linear's weights; `order` is the tile order of its outputs."""
    if weight.groups is not None:
        return pack_int4(weight.w[order], weight.groups[order], ranges, split)
    raw = weight.w.view(torch.uint8) if weight.bits == 8 else weight.w
    return pack(raw[order], ranges, split)


def pack_adapter_b(b: Tensor) -> Tensor:
    """An adapter's B, (outputs, rank) with outputs in tile order, packed as additional K of the linear."""
    rank = -(-b.shape[1] // BLOCK) * BLOCK
    wide = torch.nn.functional.pad(b, (0, rank - b.shape[1])).view(torch.int16)
    return wide.view(-1, 2, 8, rank // BLOCK, 4, 8).permute(0, 3, 1, 2, 4, 5).contiguous().flatten()


def _pad_to_tiles(a: Tensor, split: KSplit) -> Tensor:
    """An adapter's A, (rank, K), padded with zeros to whole tiles."""
    return torch.nn.functional.pad(a, (0, 0, 0, -a.shape[0] % (16 * split.cluster)))


@dataclass(frozen=True, slots=True)
class FusedLinear:
    w: Tensor
    scale: Tensor | None
    a: Tensor | None
    b: Tensor | None


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """The linears of a layer by name."""

    linears: dict[str, FusedLinear]


def linears_of(layer: LayerWeights) -> dict[str, Weight]:
    """The linears of a layer by name."""
    return {"o": layer.o, "gu": layer.gate_up, "dn": layer.down, "qkv": layer.qkv}


def scaled_adapter_b(pair: LoraPair, weight: Weight) -> Tensor:
    """An adapter's B divided by the scale of its output, which the epilogue applies; fp16 for quantised weights."""
    return pair.b if weight.scale is None else (pair.b.float() / weight.scale[:, None]).half()


def adapter_fits_fp16(layer: LayerWeights) -> bool:
    """Whether all B / scale are within fp16. A tiny scale, of an fp8 output that is nearly zero, can overflow it."""
    found = linears_of(layer)
    return all(bool(scaled_adapter_b(pair, found[name]).isfinite().all()) for name, pair in layer.canvas.items())


def pack_layer(config: ModelConfig, layer: LayerWeights) -> PackedLayer:
    found, split = {}, k_split_of(config)
    for name, weight in linears_of(layer).items():
        ranges = split.ranges[name]
        order = tile_order(config, name).to(weight.w.device)
        pair = layer.canvas.get(name)
        a = b = None
        if pair is not None:
            a = pack(_pad_to_tiles(pair.a if weight.scale is None else pair.a.half(), split), ranges, split)
            b = pack_adapter_b(scaled_adapter_b(pair, weight)[order])
        found[name] = FusedLinear(pack_weight(weight, order, ranges, split), weight.scale, a, b)
    return PackedLayer(found)


_NUM_COUNTERS = 4
# Byte of the NaN sentinel in buffers that CTAs poll.
_SENTINEL_BYTE = 255


@dataclass(frozen=True, slots=True)
class LayerFusedWorkspace:
    """Buffers of the launches of one row count, besides the network's."""

    squares: Tensor  # (rows, dim / 16): sums of squares of the embedding
    sums: Tensor  # split-K sums
    # (3, bytes): exchange buffers. Each launch resets the buffers of the next one to the sentinel. Launches alternate
    # between the first two; the first launch of a forward uses the third, which the last launch resets, so that the
    # number of launches may be odd.
    exchange: Tensor
    sizes: dict[str, int]
    counters: Tensor  # (launches, ...), zero before a forward

    @classmethod
    def allocate(cls, config: ModelConfig, num_rows: int, device: torch.device | str) -> LayerFusedWorkspace:
        heads = config.num_heads + 2 * config.num_kv_heads
        ranges = max(k_split_of(config).ranges[linear] for linear in ("o", "dn"))
        inputs = [2 * width for width in (config.q_dim, config.dim, config.ffn_dim, config.dim)]
        squares_of = [4 * (width // 16) for width in (config.dim, config.dim, heads * config.head_dim)]
        sizes = {name: width * num_rows for name, width in zip(EXCHANGED, (*inputs, *squares_of), strict=True)}
        unset = torch.full((3, sum(sizes.values())), _SENTINEL_BYTE, device=device, dtype=torch.uint8)
        sums = torch.full((ranges * config.dim * num_rows * 4,), _SENTINEL_BYTE, device=device, dtype=torch.uint8)
        squares = torch.zeros(num_rows, config.dim // 16, device=device)
        counters = torch.zeros(config.num_layers + 1, _NUM_COUNTERS, device=device, dtype=torch.int32)
        return cls(squares, sums, unset, sizes, counters)

    def exchange_of(self, launch: int) -> dict[str, Tensor]:
        """Exchange buffers of a launch by name, as bytes."""
        parts = self._of(launch).split(list(self.sizes.values()))
        return dict(zip(self.sizes, parts, strict=True))

    def next_exchange(self, launch: int) -> Tensor:
        """The buffers that this launch resets: those of the next launch."""
        return self._of(launch + 1 if launch + 1 < len(self.counters) else 0)

    def _of(self, launch: int) -> Tensor:
        return self.exchange[launch % 2 if launch else 2]


@dataclass(frozen=True, slots=True)
class LayerFusedBuffers:
    """The network's buffers that launches read and write."""

    # Partial softmax of attention: sums (splits, rows, heads, head_dim), maxima and totals.
    splits: tuple[Tensor, Tensor, Tensor]
    stream: Tensor
    norm_input: Tensor  # the embedding times the first norm's gain
    qkv: Tensor
    where: RowSlots
    gate: Tensor
    tables: RowTables

    @property
    def attention_rows(self) -> int:
        """Rows of the attention launch; these rows may be a part of them."""
        acc = self.splits[0]
        return acc.stride(0) // acc.stride(1)

    def part(self, start: int, end: int) -> LayerFusedBuffers:
        """A range of the rows. Only the last range prefetches the keys of the next attention."""
        if (start, end) == (0, len(self.stream)):
            return self
        at, tables = slice(start, end), self.tables
        seen = {name: getattr(tables, name)[at] for name in ("prefix_end", "span_start", "span_end")}
        if end < len(self.stream):
            tables = replace(tables, tiles=tables.tiles[:0], tree_slots=None)
        acc, top, total = (split[:, at] for split in self.splits)
        where = replace(self.where, positions=self.where.positions[at], slots=self.where.slots[at])
        rows = {name: getattr(self, name)[at] for name in ("stream", "norm_input", "qkv", "gate")}
        return LayerFusedBuffers((acc, top, total), where=where, tables=replace(tables, **seen), **rows)


class LayerFusedWeights:
    """The packed weights of all layers, and their launches."""

    def __init__(self, config: ModelConfig, weights: NetworkWeights, cache: PagedCache, angles: Tensor) -> None:
        self.config, self.weights, self.cache, self.angles = config, weights, cache, angles
        self.layers = tuple(pack_layer(config, layer) for layer in weights.layers)
        self.rank = _rank(weights.layers[0])
        self.max_rows = LAYER_FUSED_ROWS * MAX_LAUNCHES[weights.layers[0].qkv.bits]

    def workspace(self, num_rows: int) -> LayerFusedWorkspace:
        return LayerFusedWorkspace.allocate(self.config, num_rows, self.weights.tokens.device)

    def arguments(self, index: int, buffers: LayerFusedBuffers, workspace: LayerFusedWorkspace) -> LayerFusedArguments:
        """Arguments of the launch after attention `index`, which ends with the qkv of the next layer. Index -1 is the
        first launch: qkv only."""
        layers, count = self.weights.layers, len(self.layers)
        has_layer, has_qkv = index >= 0, index + 1 < count
        found = LayerFusedArguments(has_layer=int(has_layer), has_qkv=int(has_qkv))
        if has_layer:
            norm = layers[index].ffn_norm
            found.ffn_gain, found.ffn_eps = norm.gain.data_ptr(), norm.eps
            for at, name in enumerate(LINEARS[:3]):
                found.weights[at] = _pointers(self.layers[index].linears[name])
        after = layers[index + 1].attn_norm if has_qkv else self.weights.norm
        found.next_gain, found.next_eps = after.gain.data_ptr(), after.eps
        if has_qkv:
            self._add_qkv(found, index + 1)
        found.acc, found.top, found.total = (tensor.data_ptr() for tensor in buffers.splits)
        found.positions, found.slots = buffers.where.positions.data_ptr(), buffers.where.slots.data_ptr()
        following = workspace.next_exchange(index + 1)
        tensors = {name: getattr(buffers, name) for name in ("stream", "qkv", "gate")}
        tensors |= {name: getattr(buffers.tables, name) for name in _TABLES}
        tensors |= workspace.exchange_of(index + 1) | {"next_exchange": following, "sums": workspace.sums}
        tensors["counters"] = workspace.counters[index + 1]
        if not has_layer:
            tensors |= {"qkv_input": buffers.norm_input, "qkv_squares": workspace.squares}
        for name, tensor in tensors.items():
            setattr(found, name, tensor.data_ptr())
        found.exchange_bytes, found.num_tiles = len(following), buffers.tables.num_shared
        found.max_pages, found.page_size = buffers.tables.pages.stride(0), self.cache.page_size
        return found

    def _add_qkv(self, found: LayerFusedArguments, index: int) -> None:
        layer = self.weights.layers[index]
        found.weights[3] = _pointers(self.layers[index].linears["qkv"])
        found.k_cache, found.v_cache = self.cache.k[index].data_ptr(), self.cache.v[index].data_ptr()
        found.angles = self.angles.data_ptr()
        if layer.qkv.bias is not None:
            found.bias = layer.qkv.bias.data_ptr()
        if layer.head_norms is not None:
            found.q_gain, found.k_gain = layer.head_norms.q.data_ptr(), layer.head_norms.k.data_ptr()
            found.head_eps = layer.head_norms.eps

    def launch(
        self, index: int, buffers: LayerFusedBuffers, workspace: LayerFusedWorkspace, is_gated: bool, uses_pdl: bool
    ) -> None:
        first, gpu = self.weights.layers[0].qkv, _gpu(buffers.stream.device)
        parameters = (self.rank if is_gated else 0, first.bits, first.bias is not None, len(buffers.splits[0]))
        spec = with_stages(KernelSpec(self.config, len(buffers.stream), *parameters, gpu, buffers.attention_rows))
        assert spec is not None, "can_run_layer_fused"
        if (compilation := active_compilation()) is not None:
            compilation.submit(spec, partial(_binary, spec))
            return
        _kernel(spec).launch(spec.num_ctas, self.arguments(index, buffers, workspace), uses_pdl)


def _pointers(linear: FusedLinear) -> _Weights:
    tensors = (linear.w, linear.scale, linear.a, linear.b)
    return _Weights(*(0 if tensor is None else tensor.data_ptr() for tensor in tensors))


# The source file (KERNEL.cu) and the function in it.
KERNEL = "layer_fused"


@cache
def _kernel(spec: KernelSpec) -> Kernel:
    return load_kernel(KERNEL, _binary(spec), THREADS, shared_bytes(spec))


@cache
def _binary(spec: KernelSpec) -> bytes:
    return compile_binary(KERNEL, macros(spec), spec.gpu.capability)
