"""The forward of `model/transformer.py` on CUDA kernels and fixed buffers; a CUDA graph can capture it.

Three paths by the number of rows: two launches per layer up to 32 rows if GPU and shape allow (`layer_fused.py`), six
launches per layer up to 64, cuBLAS for more. Rounds of many sequences (`Sequences`) have an attention of their own, and
linears of their own with 64 and 128 rows (`round_linears.py`).

The layer-fused path (up to 32 rows) and the six-launch path (up to 64) are batch-invariant. Forwards with row adapters
(`RowInputs.adapters`) take the six-launch path or cuBLAS, with two more launches for each linear.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import StrEnum
from itertools import repeat

import torch
from torch import Tensor

from quicksilver.backends.cuda.kernels.attention import AttentionShape
from quicksilver.backends.cuda.kernels.fp8 import ActivationFormat, supports_fp8_activations
from quicksilver.backends.cuda.kernels.int4_dequantise import dequantise_weight
from quicksilver.backends.cuda.kernels.launch import pdl_launches
from quicksilver.backends.cuda.kernels.layer_attention import LayerAttention
from quicksilver.backends.cuda.kernels.layer_fused import (
    LayerFusedBuffers,
    LayerFusedWeights,
    can_run_layer_fused,
)
from quicksilver.backends.cuda.kernels.layer_fused_shape import LAYER_FUSED_ROWS
from quicksilver.backends.cuda.kernels.linears import (
    LinearExtras,
    LowRankTerm,
    Norm,
    QkvEpilogue,
    Weight,
    linear_add,
    linear_qkv,
    linear_swiglu,
)
from quicksilver.backends.cuda.kernels.router import UsedRows
from quicksilver.backends.cuda.kernels.row_kernels import (
    embed,
    norm_rows,
    quantise_rows,
    scale_rows,
    swiglu_rows,
)
from quicksilver.backends.cuda.kernels.sparse import SparseWorkspace, add_sparse, run_sparse
from quicksilver.backends.cuda.kernels.weight_streaming import PartialSums
from quicksilver.backends.cuda.kernels.weights import LayerWeights, LoraPair, NetworkWeights
from quicksilver.backends.cuda.kernels.wide_rounds import Sequences, is_wide, run_round, wide_workspace
from quicksilver.backends.cuda.kernels.workspace import (
    CHUNK_ROWS,
    QUANTISED_CHUNK_ROWS,
    SMALL_BATCH_ROWS,
    SPLITS,
    RowInputs,
    Workspace,
    attention_shape,
    dtype_of,
    partial_floats,
)
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig


class MatmulMode(StrEnum):
    """FASTEST, or BATCH_INVARIANT: the same kernels with one reduction order for every number of rows, so that a row's
    result does not depend on the other rows of the batch."""

    FASTEST = "fastest"
    BATCH_INVARIANT = "batch_invariant"


# Switches of optional paths. `benchmarks/gpu_setup.py` changes them.
# Everything between two attentions in one launch.
USE_LAYER_FUSED = True
# Weight bytes, including the head, of the largest model that uses PDL. In larger models an early launch takes resources
# from the loading of weights.
PDL_MAX_BYTES = 8_000_000_000
# Weight bytes, including the head, of the largest model whose forwards are bound by launches rather than by loading.
SMALL_MODEL_BYTES = 500_000_000


class CudaNetwork:
    """Weights, KV cache and RoPE angles (`rope_kernel.angle_table`); `run` is one forward."""

    def __init__(
        self, config: ModelConfig, weights: NetworkWeights, cache: PagedCache, angles: Tensor, matmul_mode: MatmulMode
    ) -> None:
        self.config, self.weights, self.cache, self.angles = config, weights, cache, angles
        self.matmul_mode, self.attention = matmul_mode, LayerAttention(config, weights, cache, angles)
        self.is_small = weights.num_bytes <= SMALL_MODEL_BYTES
        can_fuse = (
            matmul_mode is MatmulMode.FASTEST and USE_LAYER_FUSED and can_run_layer_fused(config, weights, SPLITS)
        )
        self.layer_fused = LayerFusedWeights(config, weights, cache, angles) if can_fuse else None
        self.uses_pdl = weights.num_bytes <= PDL_MAX_BYTES
        self.activations: ActivationFormat | None = None
        if weights.head.scale is not None:
            uses_fp8 = (
                matmul_mode is MatmulMode.FASTEST
                and supports_fp8_activations(config)
                and weights.layers[0].qkv.bits == 8
            )
            self.activations = ActivationFormat.FP8_STEPS if uses_fp8 else ActivationFormat.HALF

    @property
    def _is_invariant(self) -> bool:
        return self.matmul_mode is MatmulMode.BATCH_INVARIANT

    @property
    def input_dtype(self) -> torch.dtype:
        """dtype of the inputs of small-batch linears and of the head."""
        return dtype_of(self.activations, self.weights.tokens.dtype)

    def is_layer_fused(self, num_rows: int, has_prompt: bool = False) -> bool:
        """Batches with a prompt use the kernels of larger batches: a canvas beside the prompt can exceed 32 rows, and
        the prompt's KV must not depend on that."""
        return self.layer_fused is not None and num_rows <= self.layer_fused.max_rows and not has_prompt

    def attention_shape(self, num_rows: int) -> AttentionShape:
        return attention_shape(self.config, num_rows if self.matmul_mode is MatmulMode.FASTEST else SMALL_BATCH_ROWS)

    def workspace(self, num_rows: int, has_prompt: bool = False, sequences: Sequences | None = None) -> Workspace:
        """`sequences`: of a round; None for a forward of any rows."""
        if sequences is not None and self.matmul_mode is MatmulMode.FASTEST and is_wide(num_rows, sequences):
            activations = None if num_rows > SMALL_BATCH_ROWS else self.activations
            return wide_workspace(self.attention, num_rows, sequences, self.attention_shape(num_rows), activations)
        is_invariant = self._is_invariant and num_rows > SMALL_BATCH_ROWS
        activations = self.activations if is_invariant or num_rows <= SMALL_BATCH_ROWS else None
        if self.layer_fused is not None and self.is_layer_fused(num_rows, has_prompt):
            activations = None if activations is None else ActivationFormat.HALF
            workspace = Workspace.allocate(
                self.config, self.weights, num_rows, self.attention_shape(num_rows), activations
            )
            starts = range(0, num_rows, LAYER_FUSED_ROWS)
            return replace(
                workspace,
                layer_fused=tuple(self.layer_fused.workspace(min(num_rows, LAYER_FUSED_ROWS)) for _ in starts),
            )
        workspace = Workspace.allocate(self.config, self.weights, num_rows, self.attention_shape(num_rows), activations)
        if (sparse := self.weights.layers[-1].sparse) is not None:
            experts = SparseWorkspace.allocate(sparse, num_rows, is_invariant=self._is_invariant)
            workspace = replace(workspace, sparse=experts)
        if is_invariant:
            chunk = min(num_rows, CHUNK_ROWS if self.weights.head.scale is None else QUANTISED_CHUNK_ROWS)
            partials = PartialSums.allocate(partial_floats(self.config, chunk), workspace.x.device)
            small = (self.config, self.weights, chunk, self.attention_shape(chunk), activations)
            return replace(workspace, partials=partials).in_chunks(chunk, lambda: Workspace.allocate(*small))
        return workspace

    def run(self, rows: RowInputs, workspace: Workspace, is_gated: bool) -> Tensor:
        """-> `workspace.x`, the residual stream before the final norm. `is_gated`: canvas rows use the adapter;
        otherwise no row does, and the gate is ignored."""
        if self.layer_fused is not None and workspace.layer_fused:
            with pdl_launches(True, is_early=True):
                return self._run_layer_fused(self.layer_fused, rows, workspace, is_gated)
        with pdl_launches(self.uses_pdl):
            if workspace.is_round:
                # Its kernels have no terms of adapters.
                assert not is_gated
                assert rows.adapters is None
                return run_round(self.attention, rows, workspace)
            return self._run(rows, workspace, is_gated)

    def _run_layer_fused(
        self, layer_fused: LayerFusedWeights, rows: RowInputs, workspace: Workspace, is_gated: bool
    ) -> Tensor:
        """Per layer: attention, and one launch per 32 rows up to the next attention."""
        masks = self.weights.masks if is_gated else None
        for layer_workspace in workspace.layer_fused:
            layer_workspace.counters.zero_()
        embed(self.weights.tokens, masks, rows.token_ids, rows.mask_index, workspace.x)
        attend, gain = workspace.attend, self.weights.layers[0].attn_norm.gain
        splits = (attend.acc, attend.top, attend.total)
        buffers = LayerFusedBuffers(
            splits, workspace.x, workspace.scaled.y, workspace.qkv, rows.where, rows.gate, rows.tables
        )
        starts = range(0, len(workspace.x), LAYER_FUSED_ROWS)
        chunks = [buffers.part(start, min(start + LAYER_FUSED_ROWS, len(workspace.x))) for start in starts]
        for chunk, layer_workspace in zip(chunks, workspace.layer_fused, strict=True):
            scale_rows(chunk.stream, gain, chunk.norm_input, layer_workspace.squares.t(), workspace.input_scale)
        has_term = is_gated and layer_fused.rank > 0
        for index in range(-1, self.config.num_layers):
            if index >= 0:
                self.attention.attend(index, workspace.qkv, rows, workspace, merges=False)
            for chunk, layer_workspace in zip(chunks, workspace.layer_fused, strict=True):
                layer_fused.launch(index, chunk, layer_workspace, has_term, uses_pdl=True)
        return workspace.x

    def _run(self, rows: RowInputs, workspace: Workspace, is_gated: bool) -> Tensor:
        masks = self.weights.masks if is_gated else None
        embed(self.weights.tokens, masks, rows.token_ids, rows.mask_index, workspace.x)
        if workspace.uses_library:
            for index, layer in enumerate(self.weights.layers):
                self._large_layer(index, layer, rows, workspace, is_gated and bool(layer.canvas))
            return workspace.x
        layers = self.weights.layers
        chunks = self._chunks(rows, workspace)
        for _, chunk in chunks:
            if is_gated:
                chunk.ready.zero_()
            scaled = chunk.scaled
            scale_rows(chunk.x, layers[0].attn_norm.gain, scaled.y, scaled.squares, chunk.input_scale, scaled.steps)
        chunk_rows = len(chunks[0][1].x)
        next_norms = [*(layer.attn_norm for layer in layers[1:]), self.weights.norm]
        for index, next_norm in enumerate(next_norms):
            has_term = is_gated and bool(layers[index].canvas)
            terms = _row_terms(rows, index, "qkv", workspace.scaled.y, workspace.scaled.steps, chunk_rows)
            for (part, chunk), term in zip(chunks, terms, strict=False):
                self._small_qkv(index, part, chunk, has_term, term)
            attended = self.attention.attend(index, workspace.qkv, rows, workspace)
            self._small_rest(index, next_norm, (rows, workspace, attended), chunks, has_term)
            if layers[index].sparse is not None:
                squares = None if workspace.chunks else workspace.scaled.squares
                self._run_experts(index, rows, workspace, squares)
                for number, (_, chunk) in enumerate(chunks):
                    start, after = number * len(chunk.x), (next_norm, chunk.scaled)
                    add_sparse(_experts_of(workspace), start, chunk.x, after, chunk.input_scale)
        return workspace.x

    def _run_experts(self, index: int, rows: RowInputs, workspace: Workspace, squares: Tensor | None = None) -> None:
        layer, tables = self.weights.layers[index], rows.tables
        used = UsedRows(tables.prefix_end, tables.span_start, tables.span_end)
        assert layer.sparse is not None
        run_sparse(workspace.x, layer.ffn_norm, layer.sparse, used, _experts_of(workspace), squares)

    def _chunks(self, rows: RowInputs, workspace: Workspace) -> list[tuple[RowInputs, Workspace]]:
        if not workspace.chunks:
            return [(rows, workspace)]
        size = len(workspace.chunks[0].x)
        starts = range(0, len(rows.token_ids), size)
        return [(rows.part(a, a + size), chunk) for a, chunk in zip(starts, workspace.chunks, strict=True)]

    def _adapter_term(
        self, index: int, name: str, rows: RowInputs, workspace: Workspace, is_gated: bool
    ) -> LowRankTerm | None:
        if not is_gated:
            return None
        pair, ready = self.weights.layers[index].canvas[name], workspace.ready[index, list(workspace.ax).index(name)]
        return LowRankTerm(pair.a, pair.b, workspace.ax[name], rows.gate, ready)

    def _small_qkv(
        self, index: int, rows: RowInputs, workspace: Workspace, is_gated: bool, row_terms: Tensor | None = None
    ) -> None:
        layer, caches = self.weights.layers[index], (self.cache.k[index], self.cache.v[index])
        term = self._adapter_term(index, "qkv", rows, workspace, is_gated)
        extras = LinearExtras(workspace.partials, term, row_terms=row_terms, is_invariant=self._is_invariant)
        qkv = workspace.qkv.view(len(workspace.qkv), -1, self.config.head_dim)
        epilogue = QkvEpilogue(rows.where, self.angles, caches, layer.head_norms, self.config.rotary_dim)
        linear_qkv(workspace.scaled, layer.attn_norm, layer.qkv, qkv, epilogue, extras)

    def _small_rest(
        self,
        index: int,
        next_norm: Norm,
        whole: tuple[RowInputs, Workspace, Tensor],
        chunks: list[tuple[RowInputs, Workspace]],
        is_gated: bool,
    ) -> None:
        """A layer after its attention, without routed experts. The output of attention is part of `whole`: the rows of
        all chunks together."""
        (rows, workspace, attended), layer = whole, self.weights.layers[index]

        def inputs(name: str, x: Tensor, steps: Tensor | None) -> Iterator[tuple[Workspace, Tensor, LinearExtras]]:
            """Each chunk with its part of x and its extras; `steps` are the scales of an fp8 x."""
            size = len(chunks[0][1].x)
            terms = _row_terms(rows, index, name, x, steps, size)
            for (part, chunk), own, term in zip(chunks, x.split(size), terms, strict=False):
                low_rank = self._adapter_term(index, name, part, chunk, is_gated)
                yield chunk, own, LinearExtras(chunk.partials, low_rank, steps, term, self._is_invariant)

        for chunk, seen, extras in inputs("o", attended, workspace.attend.steps):
            linear_add(seen, layer.o, chunk.x, (layer.ffn_norm, chunk.scaled), extras)
        if layer.sparse is not None:
            return
        for chunk, _, extras in inputs("gu", workspace.scaled.y, workspace.scaled.steps):
            extras = replace(extras, steps=chunk.ffn_steps)
            linear_swiglu(chunk.scaled, layer.ffn_norm, layer.gate_up, chunk.ffn, extras)
        for chunk, hidden, extras in inputs("dn", workspace.ffn, workspace.ffn_steps):
            linear_add(hidden, layer.down, chunk.x, (next_norm, chunk.scaled), extras)

    def _large_layer(
        self, index: int, layer: LayerWeights, rows: RowInputs, workspace: Workspace, is_gated: bool
    ) -> None:
        pairs = layer.canvas if is_gated else {}
        gate = rows.gate[:, None].to(workspace.x.dtype) if is_gated else None

        def adapted(name: str, source: Tensor, y: Tensor) -> Tensor:
            """y plus the terms of all adapters, in place."""
            _add_adapter(y, source, pairs.get(name), gate)
            if rows.adapters is not None:
                rows.adapters.add(index, name, source, y)
            return y

        x, norm = workspace.x, layer.attn_norm
        normed = norm_rows(x, norm.gain, norm.eps, torch.empty_like(x))
        qkv = adapted("qkv", normed, _linear(normed, layer.qkv))
        attended = self.attention.rotate_and_attend(index, qkv, rows, workspace)
        adapted("o", attended, _add_linear(x, attended, layer.o))
        if layer.sparse is not None:
            self._run_experts(index, rows, workspace)
            add_sparse(_experts_of(workspace), 0, x)
            return
        norm = layer.ffn_norm
        norm_rows(x, norm.gain, norm.eps, normed)
        ffn = swiglu_rows(adapted("gu", normed, _linear(normed, layer.gate_up)), workspace.ffn)
        adapted("dn", ffn, _add_linear(x, ffn, layer.down))


def _row_terms(
    rows: RowInputs, index: int, name: str, x: Tensor, steps: Tensor | None, chunk_rows: int
) -> Iterable[Tensor | None]:
    """The terms of the row adapters by chunk of rows; endlessly None without row adapters."""
    if rows.adapters is None:
        return repeat(None)
    return rows.adapters.term(index, name, x, steps).split(chunk_rows)


def _experts_of(workspace: Workspace) -> SparseWorkspace:
    assert workspace.sparse is not None
    return workspace.sparse


def _linear(x: Tensor, weight: Weight) -> Tensor:
    if weight.scale is None:
        return torch.nn.functional.linear(x, weight.w, weight.bias)
    if weight.groups is not None:
        return torch.nn.functional.linear(x, dequantise_weight(weight, x.dtype), weight.bias)
    rounded, scale = quantise_rows(x)
    y = torch._scaled_mm(
        rounded, weight.w.t(), scale_a=scale, scale_b=weight.scale[None, :], out_dtype=x.dtype, use_fast_accum=True
    )
    return y if weight.bias is None else y + weight.bias


def _add_linear(x: Tensor, source: Tensor, weight: Weight) -> Tensor:
    """x += W source in place, fused into the matmul if cuBLAS can."""
    return x.addmm_(source, weight.w.t()) if weight.scale is None else x.add_(_linear(source, weight))


def _add_adapter(y: Tensor, source: Tensor, pair: LoraPair | None, gate: Tensor | None) -> Tensor:
    """y += gate * B A source in place, if the linear has an adapter."""
    if pair is None or gate is None:
        return y
    return y.addmm_(torch.nn.functional.linear(source, pair.a) * gate, pair.b.t())
