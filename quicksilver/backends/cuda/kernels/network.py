"""The forward of `model/transformer.py` on kernels and fixed buffers: two launches a layer up to 32 rows where the chip
and the shape allow (`between.py`), else six up to 64, the library's matrix products beyond. Reads its inputs from the
device, allocates nothing that outlives it, waits for nothing: a graph can hold it.

Up to 32 rows the numbers of a row do not depend on how many rows there are; nor up to 64 where layers are six launches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor

from quicksilver.backends.cuda.kernels import persistent_weights
from quicksilver.backends.cuda.kernels.attention import AttendShape, AttendSpace, RowTables, attend_paged
from quicksilver.backends.cuda.kernels.fp8 import Inputs, can_round
from quicksilver.backends.cuda.kernels.int4_dequantise import expand
from quicksilver.backends.cuda.kernels.launch import overlapping
from quicksilver.backends.cuda.kernels.layer_fused import BetweenSpace, BetweenWeights, Buffers, can_run
from quicksilver.backends.cuda.kernels.layer_fused_shape import BETWEEN_ROWS
from quicksilver.backends.cuda.kernels.linears import (
    Beside,
    LowRankTerm,
    Norm,
    Rotation,
    Scaled,
    Weight,
    low_parts,
    part_floats,
    project_add,
    project_qkv,
    project_swiglu,
    square_tiles,
)
from quicksilver.backends.cuda.kernels.persistent_weights import RESIDENT_ROWS, fits, run_whole, stack, whole_shape
from quicksilver.backends.cuda.kernels.rope_kernel import RowSlots, rotate_and_write
from quicksilver.backends.cuda.kernels.row_kernels import (
    SHRINK,
    embed,
    norm_rows,
    quantise_rows,
    scale_rows,
    swiglu_rows,
)
from quicksilver.backends.cuda.kernels.weight_streaming import Parts, pick_gate_columns
from quicksilver.backends.cuda.kernels.weights import LayerWeights, NetworkWeights, Pair
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig

SKINNY_ROWS = 64
SPLITS = 16
"""Programs that share the keys of few rows."""


class Product(StrEnum):
    """How large products are: as large as is fastest, or of 64 rows at most, in the same order of additions whatever
    else there is, so that a row's numbers depend on what it sees alone."""

    FASTEST = "fastest"
    FIXED = "fixed"


BETWEEN = True
"""Whether what lies between two attentions is one launch, where it can be."""
OVERLAP_BYTES = 8_000_000_000
"""Matrices, head included, of the largest model whose launches overlap: with larger ones the next launch only takes
room from the reading of weights."""
_MAX_RANK = 1024


@dataclass(frozen=True, slots=True)
class RowInputs:
    """The rows of a forward on the device, int32, at fixed addresses. Their number is a bucket: 16, 32, 64 or more;
    rows that are not used write no KV, lie in no tile, and come out as numbers nobody reads."""

    token_ids: Tensor
    mask_index: Tensor
    where: RowSlots
    gate: Tensor
    """1 on canvas rows, else 0."""
    tables: RowTables

    def part(self, start: int, end: int) -> RowInputs:
        """Some of the rows, for what is done row by row; attention needs them all."""
        at = slice(start, end)
        where = RowSlots(self.where.positions[at], self.where.slots[at])
        return RowInputs(self.token_ids[at], self.mask_index[at], where, self.gate[at], self.tables)


def attend_shape(config: ModelConfig, num_rows: int) -> AttendShape:
    """Few rows: many splits, so that a long prefix has the whole chip. Many rows fill it by themselves."""
    splits = SPLITS if num_rows <= SKINNY_ROWS else 4 if num_rows <= 256 else 1
    block_m = 64 if num_rows <= 256 else 128
    return AttendShape(config.num_heads, config.num_kv_heads, config.head_dim, block_m, splits)


@dataclass(frozen=True, slots=True)
class Space:
    """What a forward of one row count writes on its way; shared by its layers."""

    x: Tensor  # (rows, dim), the residual stream
    qkv: Tensor
    ffn: Tensor
    ffn_steps: Tensor | None  # (ffn / 64, rows), where inputs of linears are rounded
    attend: AttendSpace
    low: dict[str, Tensor]
    ready: Tensor  # (layers, 4, ...): counters of each adapter's first half
    scaled: Scaled
    parts: Parts
    between: tuple[BetweenSpace, ...] = ()
    """For each 32 rows, where these have launches of their own."""
    pieces: tuple[Space, ...] = ()
    """Where products take 64 rows at most: a space for each 64, their rows being views of this one's."""

    @property
    def shrink(self) -> float:
        """What the inputs of linears are multiplied by."""
        return self.attend.shrink

    @classmethod
    def allocate(
        cls, config: ModelConfig, weights: NetworkWeights, num_rows: int, shape: AttendShape, inputs: Inputs | None
    ) -> Space:
        """Inputs of linears are in the model's dtype, if not said otherwise."""
        device, dtype = weights.tokens.device, weights.tokens.dtype
        narrow = _input_dtype(inputs, dtype)

        def rows(width: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(num_rows, width, device=device, dtype=dtype)

        low = {
            name: torch.zeros(1 + low_parts(pair.a.shape[1]), num_rows, len(pair.a), device=device)
            for name, pair in weights.layers[0].canvas.items()
        }

        def steps(count: int) -> Tensor | None:
            return torch.zeros(count, num_rows, device=device) if inputs is Inputs.ROUNDED else None

        shrink, tiles = SHRINK if inputs is Inputs.HALF else 1.0, square_tiles(config.dim)
        attend = AttendSpace.allocate(shape, num_rows, narrow, device)
        attend = replace(attend, shrink=shrink, steps=steps(config.num_heads))
        scaled = Scaled(rows(config.dim, narrow), torch.zeros(tiles, num_rows, device=device), steps(tiles))
        parts = Parts.allocate(_part_floats(config, num_rows), device)
        qkv, ffn = rows(config.q_dim + 2 * config.kv_dim, dtype), rows(config.ffn_dim, narrow)
        ready = torch.zeros(config.num_layers, 4, _MAX_RANK // 16 + 1, dtype=torch.int32, device=device)
        return cls(rows(config.dim, dtype), qkv, ffn, steps(config.ffn_dim // 64), attend, low, ready, scaled, parts)

    def with_x(self, x: Tensor) -> Space:
        """The same space with its residual stream at the head of a larger buffer."""
        runs = x[: len(self.x)].split(SKINNY_ROWS)
        pieces = tuple(replace(piece, x=run) for piece, run in zip(self.pieces, runs, strict=False))
        return replace(self, x=x[: len(self.x)], pieces=pieces)

    def cut(self, piece: Callable[[], Space]) -> Space:
        """The same space in pieces of 64 rows, each made by `piece` for what its rows do not share."""
        columns = zip(*(t.split(SKINNY_ROWS) for t in (self.x, self.qkv, self.ffn, self.scaled.y)), strict=True)
        made = []
        for x, qkv, ffn, y in columns:
            own = piece()
            made.append(replace(own, x=x, qkv=qkv, ffn=ffn, scaled=Scaled(y, own.scaled.squares), parts=self.parts))
        return replace(self, pieces=tuple(made))


def _part_floats(config: ModelConfig, num_rows: int) -> int:
    """What the largest linear leaves unfinished; nothing where the library does the products."""
    if num_rows > SKINNY_ROWS:
        return 0
    tiles, gates = square_tiles(config.dim), pick_gate_columns(config.ffn_dim)
    heads, width = config.num_heads + 2 * config.num_kv_heads, config.dim // tiles
    shapes = [(heads, config.head_dim, config.dim), (config.ffn_dim // gates, 2 * gates, config.dim)]
    shapes += [(tiles, width, config.q_dim), (tiles, width, config.ffn_dim)]
    return part_floats(shapes, num_rows)


class Network:
    """Weights, cache and angles; `run` is one forward. `angles` comes from `rotate.angle_table`. Few rows are two
    launches a layer where that is possible (`between.py`), else of a small model one launch in all (`whole.py`)."""

    def __init__(
        self, config: ModelConfig, weights: NetworkWeights, cache: PagedCache, angles: Tensor, product: Product
    ) -> None:
        self.config, self.weights, self.cache, self.angles = config, weights, cache, angles
        self.product = product
        is_small = product is Product.FASTEST and fits(config, weights)
        self.stack = stack(config, weights) if is_small else None
        is_suited = product is Product.FASTEST and BETWEEN and can_run(config, weights, SPLITS)
        self.between = BetweenWeights(config, weights, cache, angles) if is_suited else None
        self.overlaps = weights.num_bytes <= OVERLAP_BYTES
        self.inputs: Inputs | None = None
        if weights.head.scale is not None:
            is_round = product is Product.FASTEST and can_round(config) and weights.layers[0].qkv.bits == 8
            self.inputs = Inputs.ROUNDED if is_round else Inputs.HALF

    @property
    def input_dtype(self) -> torch.dtype:
        """Of what the linears of few rows read, and the head."""
        return _input_dtype(self.inputs, self.weights.tokens.dtype)

    @property
    def is_small(self) -> bool:
        return self.stack is not None

    def is_between(self, num_rows: int, has_prompt: bool = False) -> bool:
        """With a prompt among the rows few of them have the kernels of many: its numbers must not depend on whether a
        canvas comes along, which makes them more than 32."""
        return self.between is not None and num_rows <= self.between.most_rows and not has_prompt

    def is_whole(self, num_rows: int, has_prompt: bool = False) -> bool:
        return self.is_small and num_rows <= RESIDENT_ROWS and not self.is_between(num_rows, has_prompt)

    def set_align(self, num_rows: int) -> int:
        """Where a run of canvas rows should begin, so that no tile has rows of both kinds."""
        return persistent_weights.SHARED_ROWS if self.is_whole(num_rows) else 1

    def shape(self, num_rows: int, has_prompt: bool = False) -> AttendShape:
        if self.is_whole(num_rows, has_prompt):
            return whole_shape(self.config)
        return attend_shape(self.config, num_rows if self.product is Product.FASTEST else SKINNY_ROWS)

    def space(self, num_rows: int, has_prompt: bool = False) -> Space:
        is_fixed = self.product is Product.FIXED and num_rows > SKINNY_ROWS
        inputs = self.inputs if is_fixed or num_rows <= SKINNY_ROWS else None
        if self.between is not None and self.is_between(num_rows, has_prompt):
            inputs = None if inputs is None else Inputs.HALF
            space = Space.allocate(self.config, self.weights, num_rows, self.shape(num_rows), inputs)
            starts = range(0, num_rows, BETWEEN_ROWS)
            return replace(space, between=tuple(self.between.space(min(num_rows, BETWEEN_ROWS)) for _ in starts))
        space = Space.allocate(self.config, self.weights, num_rows, self.shape(num_rows, has_prompt), inputs)
        if is_fixed:
            parts = Parts.allocate(_part_floats(self.config, SKINNY_ROWS), space.x.device)
            small = (self.config, self.weights, SKINNY_ROWS, self.shape(SKINNY_ROWS), inputs)
            return replace(space, parts=parts).cut(lambda: Space.allocate(*small))
        if not self.is_whole(num_rows, has_prompt):
            return space
        squares = torch.zeros(self.config.dim // 16, num_rows, device=space.x.device)
        return replace(space, scaled=Scaled(space.scaled.y, squares))

    def run(self, rows: RowInputs, space: Space, is_gated: bool) -> Tensor:
        """-> `space.x`, the residual stream before the final norm. `is_gated`: canvas rows wear the adapter; without
        it every row is plain, whatever its gate says."""
        if self.between is not None and space.between:
            with overlapping(True, is_early=True):
                return self._run_between(self.between, rows, space, is_gated)
        if self.stack is not None and len(rows.token_ids) <= RESIDENT_ROWS:
            place = (self.cache, self.angles)
            return run_whole(self.config, (self.weights, self.stack), place, rows, space, is_gated)
        with overlapping(self.overlaps):
            return self._run(rows, space, is_gated)

    def _run_between(self, between: BetweenWeights, rows: RowInputs, space: Space, is_gated: bool) -> Tensor:
        """Attention, and one launch to the next attention, or one for each 32 rows."""
        masks = self.weights.masks if is_gated else None
        for room in space.between:
            room.counters.zero_()
        embed(self.weights.tokens, masks, rows.token_ids, rows.mask_index, space.x)
        attend, gain = space.attend, self.weights.layers[0].attn_norm.gain
        splits = (attend.acc, attend.top, attend.total)
        buffers = Buffers(splits, space.x, space.scaled.y, space.qkv, rows.where, rows.gate, rows.tables)
        starts = range(0, len(space.x), BETWEEN_ROWS)
        parts = [buffers.part(start, min(start + BETWEEN_ROWS, len(space.x))) for start in starts]
        for part, room in zip(parts, space.between, strict=True):
            scale_rows(part.stream, gain, part.scaled, room.squares.t(), space.shrink)
        has_term = is_gated and between.rank > 0
        for index in range(-1, self.config.num_layers):
            if index >= 0:
                self._skinny_attend(index, rows, space, merges=False)
            for part, room in zip(parts, space.between, strict=True):
                between.launch(index, part, room, has_term, overlaps=True)
        return space.x

    def _run(self, rows: RowInputs, space: Space, is_gated: bool) -> Tensor:
        masks = self.weights.masks if is_gated else None
        embed(self.weights.tokens, masks, rows.token_ids, rows.mask_index, space.x)
        if len(rows.token_ids) > SKINNY_ROWS and not space.pieces:
            for index, layer in enumerate(self.weights.layers):
                self._wide_layer(index, layer, rows, space, is_gated and bool(layer.canvas))
            return space.x
        layers = self.weights.layers
        pieces = self._pieces(rows, space)
        for _, piece in pieces:
            if is_gated:
                piece.ready.zero_()
            scaled = piece.scaled
            scale_rows(piece.x, layers[0].attn_norm.gain, scaled.y, scaled.squares, piece.shrink, scaled.steps)
        next_norms = [*(layer.attn_norm for layer in layers[1:]), self.weights.norm]
        for index, next_norm in enumerate(next_norms):
            has_term = is_gated and bool(layers[index].canvas)
            for part, piece in pieces:
                self._skinny_qkv(index, part, piece, has_term)
            attended = self._skinny_attend(index, rows, space).split(SKINNY_ROWS)
            for (part, piece), seen in zip(pieces, attended, strict=True):
                self._skinny_rest(index, next_norm, (part, seen), piece, has_term)
        return space.x

    def _pieces(self, rows: RowInputs, space: Space) -> list[tuple[RowInputs, Space]]:
        if not space.pieces:
            return [(rows, space)]
        starts = range(0, len(rows.token_ids), SKINNY_ROWS)
        return [(rows.part(a, a + SKINNY_ROWS), piece) for a, piece in zip(starts, space.pieces, strict=True)]

    def _term(self, index: int, name: str, rows: RowInputs, space: Space, is_gated: bool) -> LowRankTerm | None:
        if not is_gated:
            return None
        pair, ready = self.weights.layers[index].canvas[name], space.ready[index, list(space.low).index(name)]
        return LowRankTerm(pair.a, pair.b, space.low[name], rows.gate, ready)

    def _skinny_qkv(self, index: int, rows: RowInputs, space: Space, is_gated: bool) -> None:
        layer, caches = self.weights.layers[index], (self.cache.k[index], self.cache.v[index])
        beside = Beside(space.parts, self._term(index, "qkv", rows, space, is_gated))
        qkv = space.qkv.view(len(space.qkv), -1, self.config.head_dim)
        turn = Rotation(rows.where, self.angles, caches, layer.head_norms)
        project_qkv(space.scaled, layer.attn_norm, layer.qkv, qkv, turn, beside)

    def _skinny_attend(self, index: int, rows: RowInputs, space: Space, merges: bool = True) -> Tensor:
        qkv = space.qkv.view(len(space.qkv), -1, self.config.head_dim)
        caches = (self.cache.k[index], self.cache.v[index])
        return attend_paged(qkv, caches, rows.tables, self.shape(len(qkv)), space.attend, merges)

    def _skinny_rest(
        self, index: int, next_norm: Norm, given: tuple[RowInputs, Tensor], space: Space, is_gated: bool
    ) -> None:
        """A layer behind its attention, whose output is given beside the rows."""
        (rows, attended), layer, scaled = given, self.weights.layers[index], space.scaled

        def beside(name: str, steps: Tensor | None) -> Beside:
            return Beside(space.parts, self._term(index, name, rows, space, is_gated), steps)

        project_add(attended, layer.o, space.x, (layer.ffn_norm, scaled), beside("o", space.attend.steps))
        project_swiglu(scaled, layer.ffn_norm, layer.gate_up, space.ffn, beside("gu", space.ffn_steps))
        project_add(space.ffn, layer.down, space.x, (next_norm, scaled), beside("dn", space.ffn_steps))

    def _attend(self, index: int, projected: Tensor, rows: RowInputs, space: Space) -> Tensor:
        config, layer = self.config, self.weights.layers[index]
        qkv = projected.view(len(projected), -1, config.head_dim)
        caches = (self.cache.k[index], self.cache.v[index])
        rotate_and_write(qkv, caches, rows.where, self.angles, layer.head_norms)
        return attend_paged(qkv, caches, rows.tables, attend_shape(config, len(qkv)), space.attend)

    def _wide_layer(self, index: int, layer: LayerWeights, rows: RowInputs, space: Space, is_gated: bool) -> None:
        pairs = layer.canvas if is_gated else {}
        gate = rows.gate[:, None].to(space.x.dtype) if is_gated else None
        x, norm = space.x, layer.attn_norm
        normed = norm_rows(x, norm.gain, norm.eps, torch.empty_like(x))
        qkv = _adapt(_linear(normed, layer.qkv), normed, pairs.get("qkv"), gate)
        attended = self._attend(index, qkv, rows, space)
        _adapt(_add_linear(x, attended, layer.o), attended, pairs.get("o"), gate)
        norm = layer.ffn_norm
        norm_rows(x, norm.gain, norm.eps, normed)
        gate_up = _adapt(_linear(normed, layer.gate_up), normed, pairs.get("gu"), gate)
        ffn = swiglu_rows(gate_up, space.ffn)
        _adapt(_add_linear(x, ffn, layer.down), ffn, pairs.get("dn"), gate)


def _input_dtype(inputs: Inputs | None, dtype: torch.dtype) -> torch.dtype:
    if inputs is None:
        return dtype
    return torch.float16 if inputs is Inputs.HALF else torch.float8_e4m3fn


def _linear(x: Tensor, weight: Weight) -> Tensor:
    if weight.scale is None:
        return torch.nn.functional.linear(x, weight.w, weight.bias)
    if weight.groups is not None:
        return torch.nn.functional.linear(x, expand(weight, x.dtype), weight.bias)
    rounded, scale = quantise_rows(x)
    y = torch._scaled_mm(
        rounded, weight.w.t(), scale_a=scale, scale_b=weight.scale[None, :], out_dtype=x.dtype, use_fast_accum=True
    )
    return y if weight.bias is None else y + weight.bias


def _add_linear(x: Tensor, source: Tensor, weight: Weight) -> Tensor:
    """x += W source, in place, inside the product where the library can."""
    return x.addmm_(source, weight.w.t()) if weight.scale is None else x.add_(_linear(source, weight))


def _adapt(y: Tensor, source: Tensor, pair: Pair | None, gate: Tensor | None) -> Tensor:
    """y += gate * B A source, in place, where the linear wears an adapter."""
    if pair is None or gate is None:
        return y
    return y.addmm_(torch.nn.functional.linear(source, pair.a) * gate, pair.b.t())
