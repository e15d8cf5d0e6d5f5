"""Inputs and intermediate buffers of a forward on the CUDA kernels, at fixed addresses. `network.py` describes the
three paths by the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quicksilver.backends.cuda.kernels.adapter_rows import AdapterTiles
from quicksilver.backends.cuda.kernels.attention import AttentionShape, AttentionWorkspace, RowTables
from quicksilver.backends.cuda.kernels.fp8 import ActivationFormat
from quicksilver.backends.cuda.kernels.layer_fused import LayerFusedWorkspace
from quicksilver.backends.cuda.kernels.linears import NormInput, ax_splits, partial_sums_size, square_tiles
from quicksilver.backends.cuda.kernels.rope_kernel import RowSlots
from quicksilver.backends.cuda.kernels.row_kernels import INPUT_SCALE
from quicksilver.backends.cuda.kernels.sparse import SparseWorkspace
from quicksilver.backends.cuda.kernels.weight_streaming import PartialSums, pick_gate_block_n
from quicksilver.backends.cuda.kernels.weights import NetworkWeights
from quicksilver.model.config import ModelConfig

# Rows of the largest batch of the six-launch path.
SMALL_BATCH_ROWS = 64
# Rows of a chunk of larger batches in batch-invariant mode. A chunk reads the weights once, so few large chunks are
# faster. Products of quantised weights need more registers per row.
CHUNK_ROWS, QUANTISED_CHUNK_ROWS = 256, 128
# Attention splits for small batches.
SPLITS = 16
_MAX_RANK = 1024


@dataclass(frozen=True, slots=True)
class RowInputs:
    """The rows of a forward on the device, int32, at fixed addresses. Their number is one for which a graph is
    captured. Unused rows write no KV, belong to no attention tile, and their outputs are ignored."""

    token_ids: Tensor
    mask_index: Tensor
    where: RowSlots
    gate: Tensor  # 1 on canvas rows, else 0
    tables: RowTables
    adapters: AdapterTiles | None = None  # of requests; None runs no kernels for them

    def part(self, start: int, end: int) -> RowInputs:
        """A range of the rows, for row-wise work. Attention and the row adapters need all of them."""
        at = slice(start, end)
        where = RowSlots(self.where.positions[at], self.where.slots[at])
        return RowInputs(self.token_ids[at], self.mask_index[at], where, self.gate[at], self.tables)


def attention_shape(config: ModelConfig, num_rows: int) -> AttentionShape:
    """Small batches have many splits, so that a long prefix occupies the whole GPU."""
    splits = SPLITS if num_rows <= SMALL_BATCH_ROWS else 4 if num_rows <= 256 else 1
    block_m = 64 if num_rows <= 256 else 128
    return AttentionShape(config.num_heads, config.num_kv_heads, config.head_dim, block_m, splits)


@dataclass(frozen=True, slots=True)
class Workspace:
    """Intermediate buffers of a forward of one row count; shared by its layers."""

    x: Tensor  # (rows, dim), the residual stream
    qkv: Tensor
    ffn: Tensor
    ffn_steps: Tensor | None  # (ffn / 64, rows): scales of an fp8 `ffn`
    attend: AttentionWorkspace
    ax: dict[str, Tensor]
    ready: Tensor  # (layers, 4, ...): counters of each adapter's A x
    scaled: NormInput
    partials: PartialSums
    layer_fused: tuple[LayerFusedWorkspace, ...] = ()  # one per 32 rows of the layer-fused path
    chunks: tuple[Workspace, ...] = ()  # of the batch-invariant path: views of this workspace
    sparse: SparseWorkspace | None = None  # of layers with routed experts
    uses_library: bool = False  # cuBLAS multiplies
    is_round: bool = False  # of `round_linears.py`
    fuses_rope: bool = False  # attention rotates its rows, one for each sequence, and writes their KV

    @property
    def input_scale(self) -> float:
        """Factor of the inputs of linears."""
        return self.attend.input_scale

    @classmethod
    def allocate(
        cls,
        config: ModelConfig,
        weights: NetworkWeights,
        num_rows: int,
        shape: AttentionShape,
        activations: ActivationFormat | None,
    ) -> Workspace:
        """`activations` None keeps the model's dtype."""
        device, dtype = weights.tokens.device, weights.tokens.dtype
        input_dtype = dtype_of(activations, dtype)

        def rows(width: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(num_rows, width, device=device, dtype=dtype)

        ax = {
            name: torch.zeros(1 + ax_splits(pair.a.shape[1]), num_rows, len(pair.a), device=device)
            for name, pair in weights.layers[0].canvas.items()
        }

        def steps(count: int) -> Tensor | None:
            return torch.zeros(count, num_rows, device=device) if activations is ActivationFormat.FP8_STEPS else None

        input_scale, tiles = INPUT_SCALE if activations is ActivationFormat.HALF else 1.0, square_tiles(config.dim)
        attend = AttentionWorkspace.allocate(shape, num_rows, input_dtype, device)
        attend = replace(attend, input_scale=input_scale, steps=steps(config.num_heads))
        scaled = NormInput(rows(config.dim, input_dtype), torch.zeros(tiles, num_rows, device=device), steps(tiles))
        # cuBLAS multiplies larger batches.
        num_floats = partial_floats(config, num_rows) if num_rows <= SMALL_BATCH_ROWS else 0
        partials = PartialSums.allocate(num_floats, device)
        qkv, ffn = rows(config.q_dim + 2 * config.kv_dim, dtype), rows(config.ffn_dim, input_dtype)
        ready = torch.zeros(config.num_layers, 4, _MAX_RANK // 16 + 1, dtype=torch.int32, device=device)
        x, ffn_steps, uses_library = rows(config.dim, dtype), steps(config.ffn_dim // 64), num_rows > SMALL_BATCH_ROWS
        return cls(x, qkv, ffn, ffn_steps, attend, ax, ready, scaled, partials, uses_library=uses_library)

    def with_x(self, x: Tensor) -> Workspace:
        """The same workspace with its residual stream in the first rows of `x`."""
        used = x[: len(self.x)]
        runs = used.split(len(self.chunks[0].x)) if self.chunks else ()
        chunks = tuple(replace(chunk, x=run) for chunk, run in zip(self.chunks, runs, strict=True))
        return replace(self, x=used, chunks=chunks)

    def in_chunks(self, num_rows: int, chunk: Callable[[], Workspace]) -> Workspace:
        """The same workspace in chunks of `num_rows`; `chunk` allocates the buffers that a chunk does not share."""
        columns = zip(*(t.split(num_rows) for t in (self.x, self.qkv, self.ffn, self.scaled.y)), strict=True)
        made = []
        for x, qkv, ffn, y in columns:
            own = chunk()
            made.append(
                replace(own, x=x, qkv=qkv, ffn=ffn, scaled=NormInput(y, own.scaled.squares), partials=self.partials)
            )
        return replace(self, chunks=tuple(made), uses_library=False)


def partial_floats(config: ModelConfig, num_rows: int) -> int:
    """Size of the largest linear's split-K sums."""
    tiles, gates = square_tiles(config.dim), pick_gate_block_n(config.ffn_dim)
    heads, width = config.num_heads + 2 * config.num_kv_heads, config.dim // tiles
    shapes = [(heads, config.head_dim, config.dim), (config.ffn_dim // gates, 2 * gates, config.dim)]
    shapes += [(tiles, width, config.q_dim), (tiles, width, config.ffn_dim)]
    return partial_sums_size(shapes, num_rows)


def dtype_of(activations: ActivationFormat | None, dtype: torch.dtype) -> torch.dtype:
    if activations is None:
        return dtype
    return torch.float16 if activations is ActivationFormat.HALF else torch.float8_e4m3fn
