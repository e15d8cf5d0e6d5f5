"""The forward of `model/gemma.py` on CUDA kernels; a CUDA graph can capture it.

Shapes depend on the number of rows only, and nothing synchronises with the host. The dense feed-forward and the experts
of a layer read the same rows; the dense one runs on a second stream, beside the experts, which are bound by memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from quicksilver.backends.cuda.kernels.expert_tiles import ExpertTiles
from quicksilver.backends.cuda.kernels.gemma_experts import expert_parts, tile_height
from quicksilver.backends.cuda.kernels.gemma_router import choose_experts
from quicksilver.backends.cuda.kernels.gemma_rows import (
    Rows,
    after_attention,
    begin_rows,
    end_layer,
    gelu_rows,
    write_heads,
)
from quicksilver.backends.cuda.kernels.gemma_weights import GemmaLayerWeights, GemmaWeights
from quicksilver.backends.cuda.kernels.launch import pdl_launches
from quicksilver.backends.cuda.kernels.linears import Weight
from quicksilver.backends.cuda.kernels.row_kernels import norm_rows
from quicksilver.backends.cuda.kernels.window_attention import WindowShape, WindowWorkspace, attend_window
from quicksilver.backends.cuda.kernels.workspace import RowInputs
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from quicksilver.model.gemma import GemmaRope

# Whether kernels start before the one before them ends (`launch.py`): 0.7 % of a body of 256 rows on an H200.
USE_PDL = True


class GemmaNetwork:
    """Weights and KV cache; `run` is one forward."""

    def __init__(self, config: ModelConfig, weights: GemmaWeights, cache: PagedCache, rope: GemmaRope) -> None:
        gemma, moe = config.gemma, config.moe
        assert gemma is not None
        assert moe is not None
        self.config, self.moe, self.weights, self.cache = config, moe, weights, cache
        self.is_full = gemma.is_full
        near = WindowShape(config.num_heads, config.num_kv_heads, config.head_dim, gemma.window)
        full = WindowShape(config.num_heads, gemma.full_kv_heads, gemma.full_head_dim)
        self.shapes = (near, full)
        self.inv_freq = (rope.inv_freq, rope.full.inv_freq)
        self.uses_pdl = USE_PDL
        self.is_fp8 = weights.head.scale is not None
        self._side = torch.cuda.Stream() if cache.k.is_cuda else None

    def run(self, rows: RowInputs, soft: Tensor | None) -> Tensor:
        """-> (rows, dim), the hidden states after the final norm. `soft` (rows, dim): the soft embeddings of canvas
        rows; None if there are none."""
        with pdl_launches(self.uses_pdl):
            return self._run(rows, soft)

    def _run(self, rows: RowInputs, soft: Tensor | None) -> Tensor:
        weights, eps = self.weights, self.config.norm_eps
        num_rows, dim = len(rows.token_ids), self.config.dim
        x = torch.empty(num_rows, dim, dtype=weights.tokens.dtype, device=weights.tokens.device)
        given = self._rows(num_rows, dim, x)
        conditioning = None if soft is None else (self._conditioning(soft), rows.gate)
        gain = weights.layers[0].attn_gain
        begin_rows(weights.tokens, rows.token_ids, weights.embed_scale, conditioning, gain, eps, x, given)
        angles = [_angles(rows.where.positions, inv_freq) for inv_freq in self.inv_freq]
        attention, tiles = WindowWorkspace.allocate(self.shapes, num_rows, x), self.expert_tiles(num_rows)
        next_gains = [*(layer.attn_gain for layer in weights.layers[1:]), weights.final_gain]
        for index, (layer, next_gain) in enumerate(zip(weights.layers, next_gains, strict=True)):
            attended = self._attend(index, layer, given, rows, angles[self.is_full[index]], attention)
            is_last = index == len(weights.layers) - 1
            given = Rows.empty(num_rows, dim, x, self.is_fp8 and not is_last)
            self._feed_forward(layer, x, attended, tiles, (rows.gate, next_gain), given)
        return given.values

    def expert_tiles(self, num_rows: int, height: int = 0) -> ExpertTiles:
        """Tables of the chosen experts of a forward, with tiles of `height` or the default one."""
        height = height or tile_height(num_rows, self.moe.top_k, self.moe.num_experts)
        num_pairs = num_rows * self.moe.top_k
        return ExpertTiles.allocate(num_rows, self.moe.num_experts, num_pairs, height, self.cache.k.device)

    def _rows(self, num_rows: int, dim: int, like: Tensor) -> Rows:
        return Rows.empty(num_rows, dim, like, self.is_fp8)

    def _conditioning(self, soft: Tensor) -> Tensor:
        weights, given = self.weights, self._rows(len(soft), self.config.dim, soft)
        norm_rows(soft, weights.soft_gain, self.config.norm_eps, given.values, steps=given.steps)
        return self._gated(given, weights.soft_gate_up, weights.soft_down, soft)

    def _gated(self, given: Rows, gate_up: Weight, down: Weight, like: Tensor) -> Tensor:
        active = self._rows(len(given.values), self.config.ffn_dim, like)
        return matmul(gelu_rows(matmul(given, gate_up, like.dtype), active), down, like.dtype)

    def _attend(
        self, index: int, layer: GemmaLayerWeights, given: Rows, rows: RowInputs, angles: Tensor,
        workspace: WindowWorkspace,
    ) -> Tensor:  # fmt: skip
        """The output projection of attention."""
        shape, dtype = self.shapes[self.is_full[index]], workspace.out.dtype
        source = matmul(given, layer.qkv, dtype)
        qkv = source.new_empty(len(source), shape.num_all, shape.head_dim)
        caches, where = (self.cache.k[index], self.cache.v[index]), rows.where
        write_heads(
            source, qkv, caches, angles, where.slots, layer.head_gains, self.config.norm_eps, shape.num_kv_heads
        )
        attended = attend_window(qkv, caches, rows.tables, where.slots, shape, workspace, is_fp8=self.is_fp8)
        return matmul(attended, layer.o, dtype)

    def _feed_forward(
        self, layer: GemmaLayerWeights, x: Tensor, attended: Tensor, tiles: ExpertTiles, end: tuple[Tensor, Tensor],
        out: Rows,
    ) -> None:  # fmt: skip
        """`end`: the gate of canvas rows, and the gain of the next norm, whose rows `out` receives."""
        (num_rows, dim), eps, top_k = x.shape, self.config.norm_eps, self.moe.top_k
        dense, sparse = self._rows(num_rows, dim, x), self._rows(num_rows, dim, x)
        inverse_rms = torch.empty(num_rows, device=x.device)
        after_attention(x, attended, layer.after_gains, eps, dense, sparse, inverse_rms)
        with self._beside():
            first = self._gated(dense, layer.gate_up, layer.down, x)
        weights = choose_experts(x, inverse_rms, layer.router, layer.expert_scale, top_k, tiles)
        experts = (layer.expert_gate_up, layer.expert_down)
        parts = expert_parts(sparse, top_k, *experts, tiles, self.moe.activation, x.dtype)
        self._join()
        with pdl_launches(False):  # it waits for two kernels
            end_layer(x, first, (parts, weights), layer.end_gains, layer.scalars, *end, eps, out)

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """Work on the second stream, after all work queued so far."""
        if self._side is None:
            yield
            return
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            yield

    def _join(self) -> None:
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)


def matmul(x: Rows, weight: Weight, dtype: torch.dtype) -> Tensor:
    """x W^T in `dtype`."""
    if weight.scale is None:
        return torch.nn.functional.linear(x.values, weight.w)
    assert x.steps is not None
    return torch._scaled_mm(
        x.values, weight.w.t(), scale_a=x.steps, scale_b=weight.scale[None, :], out_dtype=dtype, use_fast_accum=True
    )


def _angles(positions: Tensor, inv_freq: Tensor) -> Tensor:
    """(rows, 2, head_dim / 2) fp32: cosines and sines."""
    angles = positions[:, None].float() * inv_freq
    return torch.stack((angles.cos(), angles.sin()), dim=1)
