"""The network, top to bottom: Llama, Qwen2 and Qwen3 bodies over ragged rows.

A forward takes (rows, dim) and knows neither sequences nor a cache: positions come as a tensor and attention as an
`Attend`. Canvas rows may pass through an adapter; all other rows compute exactly what the parent computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad, silu

from quicksilver.model.attention import Attend
from quicksilver.model.config import ModelConfig
from quicksilver.model.rope import Rope, Rotation, rotate

if TYPE_CHECKING:
    from quicksilver.model.lowrank import CanvasAdapter


ROW_TILE = 4


@dataclass(frozen=True, slots=True)
class CanvasRows:
    """Which rows of this forward wear the canvas adapter, in the two forms that linears need."""

    gate: Tensor
    """(rows, 1) in the model's dtype: 1 on canvas rows, 0 elsewhere."""
    is_canvas: Tensor


def on_full_tiles(linear: nn.Module, x: Tensor) -> Tensor:
    """`linear(x)` such that no row's bits depend on how many rows ride along (CPU).

    Float matmuls of few rows take other kernels than larger ones; in whole tiles of 4 rows they always take the same.
    """
    missing = _missing_rows(x)
    return linear(pad(x, (0, 0, 0, missing)))[: len(x)] if missing else linear(x)


def _missing_rows(x: Tensor) -> int:
    if x.device.type != "cpu" or torch.compiler.is_compiling() or x.requires_grad:
        return 0
    return -len(x) % ROW_TILE


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, in fp32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Layer(nn.Module):
    """One transformer layer with fused projections: qkv, o, gate_up, down."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.config, self.index = config, index
        self.attn_norm = RMSNorm(config.dim, config.norm_eps)
        self.qkv = nn.Linear(config.dim, config.q_dim + 2 * config.kv_dim, bias=config.qkv_bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.norm_eps)
            self.k_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.o = nn.Linear(config.q_dim, config.dim, bias=False)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        self.gate_up = nn.Linear(config.dim, 2 * config.ffn_dim, bias=False)
        self.down = nn.Linear(config.ffn_dim, config.dim, bias=False)

    def forward(self, x: Tensor, rotation: Rotation, attend: Attend, adapter: LayerAdapter | None) -> Tensor:
        x = x + self._attention(self.attn_norm(x), rotation, attend, adapter)
        return x + self._feed_forward(self.ffn_norm(x), adapter)

    def _attention(self, x: Tensor, rotation: Rotation, attend: Attend, adapter: LayerAdapter | None) -> Tensor:
        config = self.config
        qkv = _project(self.qkv, "qkv", x, adapter).view(x.shape[0], -1, config.head_dim)
        q, k, v = qkv.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
        if config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        out = attend(self.index, rotate(q, rotation), rotate(k, rotation), v)
        return _project(self.o, "o", out.reshape(x.shape[0], config.q_dim), adapter)

    def _feed_forward(self, x: Tensor, adapter: LayerAdapter | None) -> Tensor:
        gate, up = _project(self.gate_up, "gu", x, adapter).chunk(2, dim=-1)
        return _project(self.down, "dn", silu(gate) * up, adapter)


@dataclass(frozen=True, slots=True)
class LayerAdapter:
    """The canvas adapter's modules of one layer, keyed qkv, o, gu, dn, and the rows that wear them."""

    linears: nn.ModuleDict
    rows: CanvasRows


def _project(linear: nn.Module, name: str, x: Tensor, adapter: LayerAdapter | None) -> Tensor:
    if adapter is None:
        return linear(x)
    return adapter.linears[name](linear, x, adapter.rows)


class Transformer(nn.Module):
    """The whole network. `canvas` is set by `adapters.attach_canvas`."""

    canvas: CanvasAdapter | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        # Made by hand: initialising an embedding on the meta device would import the whole compiler.
        self.tokens = nn.Embedding(config.vocab_size, config.dim, _weight=torch.empty(config.vocab_size, config.dim))
        if not self.tokens.weight.is_meta:
            nn.init.normal_(self.tokens.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.num_layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        if config.tied_head:
            self.head.weight = self.tokens.weight
        self.rope = Rope(config)
        self.canvas = None

    def embed(self, token_ids: Tensor, mask_index: Tensor | None = None) -> Tensor:
        """(rows,) ids -> (rows, dim). Where mask_index >= 0 the row is the learned mask of that canvas index."""
        x = self.tokens(token_ids)
        if mask_index is None or self.canvas is None:
            return x
        masks = embedding(mask_index.clamp(min=0), self.canvas.mask_embedding).to(x.dtype)
        return torch.where(mask_index[:, None] >= 0, masks, x)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend, is_canvas: Tensor | None = None) -> Tensor:
        """(rows, dim) -> (rows, dim) after the final norm. Rows where `is_canvas` pass through the canvas adapter."""
        rotation = self.rope(positions)
        rows = self._canvas_rows(is_canvas, x.dtype)
        for index, layer in enumerate(self.layers):
            x = layer(x, rotation, attend, self._layer_adapter(index, rows))
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """(rows, dim) -> (rows, vocab). Pass only the rows that are needed."""
        return on_full_tiles(self.head, hidden)

    @property
    def device(self) -> torch.device:
        return self.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of activations; weights may be held in fewer bits."""
        return self.norm.weight.dtype

    def _layer_adapter(self, index: int, rows: CanvasRows | None) -> LayerAdapter | None:
        if rows is None or self.canvas is None:
            return None
        return LayerAdapter(self.canvas.layers[index], rows)  # type: ignore[arg-type]

    def _canvas_rows(self, is_canvas: Tensor | None, dtype: torch.dtype) -> CanvasRows | None:
        if is_canvas is None or self.canvas is None:
            return None
        # On an accelerator looking at the rows would wait for it; there the caller passes None instead.
        if is_canvas.device.type == "cpu" and not torch.compiler.is_compiling() and not bool(is_canvas.any()):
            return None
        return CanvasRows(is_canvas[:, None].to(dtype), is_canvas)
