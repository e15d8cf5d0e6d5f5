"""The network, top to bottom: Llama, Qwen2 and Qwen3 bodies over ragged rows.

A forward takes (rows, dim) and knows neither sequences nor a cache: positions come as a tensor and attention as an
`Attend`. Canvas rows may pass through an adapter; all other rows compute exactly what the parent computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad, rms_norm, silu

from quicksilver.model.attention import Attend
from quicksilver.model.config import ModelConfig
from quicksilver.model.rope import Rope, Rotation, rotate
from quicksilver.model.visibility import ROW_TILE

if TYPE_CHECKING:
    from quicksilver.model.lowrank import CanvasAdapter


@dataclass(frozen=True, slots=True)
class CanvasRows:
    """Which rows of this forward wear the canvas adapter, in the two forms that linears need."""

    gate: Tensor
    """(rows, 1) in the model's dtype: 1 on canvas rows, 0 elsewhere."""
    is_canvas: Tensor

    def padded(self, missing: int) -> CanvasRows:
        return CanvasRows(pad(self.gate, (0, 0, 0, missing)), pad(self.is_canvas, (0, missing)))


def on_full_tiles(linear: nn.Module, x: Tensor) -> Tensor:
    """`linear(x)` with the rows padded to whole tiles on a CPU, so that a row's bits do not depend on their number."""
    missing = missing_rows(x, ROW_TILE)
    return linear(pad(x, (0, 0, 0, missing)))[: len(x)] if missing else linear(x)


def missing_rows(x: Tensor, tile: int) -> int:
    """Rows short of whole tiles, and of as many as make products repeatable. A CPU multiplies an odd rest of rows by
    other routines than the rest, and some a few rows too."""
    if x.device.type != "cpu" or torch.compiler.is_compiling() or torch.is_grad_enabled() or tile == 1:
        return 0
    return max(-len(x) % tile, fewest_rows() - len(x))


_TRIED = ((512, 192), (192, 576), (64, 1536))
"""Outputs and depths of the products by which a processor is judged."""


@cache
def fewest_rows() -> int:
    """From how many rows on this processor's products add a row in the same order, tried once: four on most."""
    generator = torch.Generator().manual_seed(0)
    pairs = [(torch.randn(64, k, generator=generator), torch.randn(n, k, generator=generator)) for n, k in _TRIED]

    def is_enough(count: int) -> bool:
        tiles = range(count, 33, ROW_TILE)
        return all(torch.equal(x[:rows] @ w.t(), (x @ w.t())[:rows]) for x, w in pairs for rows in tiles)

    return next((count for count in (ROW_TILE, 8, 16, 32) if is_enough(count)), ROW_TILE)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, in fp32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight.shape, self.weight, self.eps)


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
        qk, v = qkv.split((config.num_heads + config.num_kv_heads, config.num_kv_heads), dim=1)
        if config.qk_norm:
            qk = torch.cat((self.q_norm(qk[:, : config.num_heads]), self.k_norm(qk[:, config.num_heads :])), dim=1)
        q, k = rotate(qk, rotation).split((config.num_heads, config.num_kv_heads), dim=1)
        out = attend(self.index, q, k, v)
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


@dataclass(frozen=True, slots=True)
class _PaddedAttend:
    """Keeps rows of padding out of attention."""

    attend: Attend
    num_rows: int
    missing: int

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = self.attend(layer, q[: self.num_rows], k[: self.num_rows], v[: self.num_rows])
        return pad(out, (0, 0, 0, 0, 0, self.missing))


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
        self.is_exact = False
        """Whether every linear gives a row the same bits in any company; set by `quantise_model`."""
        self.is_native = False
        """Whether every linear is packed for the compiled loops; set by `quantise_model`."""

    def embed(self, token_ids: Tensor, mask_index: Tensor | None = None) -> Tensor:
        """(rows,) ids -> (rows, dim). Where mask_index >= 0 the row is the learned mask of that canvas index."""
        x = self.tokens(token_ids)
        if mask_index is None or self.canvas is None:
            return x
        masks = embedding(mask_index.clamp(min=0), self.canvas.mask_embedding).to(x.dtype)
        return torch.where(mask_index[:, None] >= 0, masks, x)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend, is_canvas: Tensor | None = None) -> Tensor:
        """(rows, dim) -> (rows, dim) after the final norm. Rows where `is_canvas` pass through the canvas adapter."""
        rows = self._canvas_rows(is_canvas, x.dtype)
        num_rows, missing = len(x), missing_rows(x, self._row_tile(len(x), rows))
        if missing:
            x, positions = pad(x, (0, 0, 0, missing)), pad(positions, (0, missing))
            rows, attend = rows and rows.padded(missing), _PaddedAttend(attend, num_rows, missing)
        rotation = self.rope(positions)
        for index, layer in enumerate(self.layers):
            x = layer(x, rotation, attend, self._layer_adapter(index, rows))
        return self.norm(x)[:num_rows]

    def logits(self, hidden: Tensor) -> Tensor:
        """(rows, dim) -> (rows, vocab). Pass only the rows that are needed."""
        return self.head(hidden) if self.is_exact else on_full_tiles(self.head, hidden)

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take, packed ones included, a tied head once."""
        tensors = {t.data_ptr(): t.nbytes for t in (*self.parameters(), *self.buffers())}
        return sum(tensors.values()) + sum(getattr(module, "packed_bytes", 0) for module in self.modules())

    @property
    def device(self) -> torch.device:
        return self.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of activations; weights may be held in fewer bits."""
        return self.norm.weight.dtype

    def _row_tile(self, num_rows: int, rows: CanvasRows | None) -> int:
        """Integer matmuls give the same bits for any few rows; only float ones need whole tiles then."""
        return 1 if self.is_exact and rows is None and num_rows < 4 * ROW_TILE else ROW_TILE

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
