"""The network: a Llama-style transformer over ragged rows. Families differ only in the options of `ModelConfig`.

A forward takes (rows, dim). Positions are a tensor argument and attention is an `Attend` argument, so the network
itself has no notion of sequences or of a KV cache. Canvas rows pass through the canvas adapter; all other rows compute
exactly what the autoregressive parent computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad, rms_norm, silu

from quicksilver.model.attention import ROW_TILE, Attend, PagedCache, RowPlan, SdpaAttend, missing_rows, on_full_tiles
from quicksilver.model.config import ModelConfig, RopeScaling
from quicksilver.model.moe import SparseFeedForward

if TYPE_CHECKING:
    from quicksilver.model.lowrank import CanvasAdapter
    from quicksilver.model.row_adapters import AdapterRows

# cos and sin, each (rows, 1, head_dim) fp32
Rotation = tuple[Tensor, Tensor]


class Rope(nn.Module):
    """positions (rows,) -> Rotation: rotary position embedding in rotate-half form, with linear, YaRN and Llama-3
    scaling of the frequencies.

    Angles are computed from the positions, in fp32 for any model dtype, also after `.to(bfloat16)`. There is no table
    that has to grow and no synchronisation with the device, so a captured CUDA graph replays with new positions.
    """

    inv_freq: Tensor

    def __init__(self, config: ModelConfig, inv_freq: Tensor | None = None) -> None:
        super().__init__()
        inv_freq, self.scale = frequencies(config) if inv_freq is None else (inv_freq, 1.0)
        scaling = config.rope_scaling
        self.query_scale_beta = config.query_scale_beta
        self.original_len = scaling.original_context_len if scaling is not None else config.context_len
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Rope:
        kept = self.inv_freq
        super()._apply(fn, recurse)
        self.inv_freq = kept.to(self.inv_freq.device)
        return self

    def query_scale(self, positions: Tensor) -> Tensor | None:
        """(rows, 1, 1) factors on rotated queries; None if the model has none (Llama 4, Ministral 3)."""
        if not self.query_scale_beta:
            return None
        return (1 + self.query_scale_beta * torch.log1p((positions // self.original_len).float()))[:, None, None]

    def forward(self, positions: Tensor) -> Rotation:
        angles = positions[:, None].float() * self.inv_freq  # (rows, head_dim / 2)
        angles = torch.cat((angles, angles), dim=-1)[:, None, :]
        return angles.cos() * self.scale, angles.sin() * self.scale


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate (rows, heads, head_dim) in fp32; the result has x's dtype. Dimensions beyond the rotation are kept."""
    cos, sin = rotation
    if cos.shape[-1] < x.shape[-1]:
        size = cos.shape[-1]
        return torch.cat((rotate(x[..., :size], rotation), x[..., size:]), dim=-1)
    wide = x.float()
    left, right = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-right, left), dim=-1) * sin).to(x.dtype)


def frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Inverse frequencies (rotary_dim / 2,) on the CPU, and the factor on cos and sin."""
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32, device="cpu") / config.rotary_dim
    inv_freq = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is None:
        return inv_freq, 1.0
    if scaling.kind == "linear":
        return inv_freq / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _llama3(inv_freq, scaling), 1.0
    factor = scaling.attention_factor
    if factor is None:
        factor = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
    return _yarn(inv_freq, scaling, config), factor


def _yarn(inv_freq: Tensor, scaling: RopeScaling, config: ModelConfig) -> Tensor:
    """High frequencies are kept, low ones interpolated, with a ramp between (arXiv 2309.00071, §3.2)."""

    def dimension_of(rotations: float) -> float:
        ratio = scaling.original_context_len / (rotations * 2 * math.pi)
        return config.rotary_dim * math.log(ratio) / (2 * math.log(config.rope_theta))

    low = max(math.floor(dimension_of(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension_of(scaling.beta_slow)), config.rotary_dim - 1)
    steps = torch.arange(config.rotary_dim // 2, dtype=torch.float32, device="cpu")
    ramp = ((steps - low) / (high - low if high != low else 0.001)).clamp(0, 1)
    return inv_freq / scaling.factor * ramp + inv_freq * (1 - ramp)


def _llama3(inv_freq: Tensor, scaling: RopeScaling) -> Tensor:
    """Low frequencies are divided by the factor, high ones kept, with a blend between (as in Llama 3.1)."""
    rotations = scaling.original_context_len * inv_freq / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = ((rotations - scaling.low_freq_factor) / span).clamp(0, 1)
    return (1 - keep) * inv_freq / scaling.factor + keep * inv_freq


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
        if config.moe is not None and index >= config.moe.num_dense:
            self.moe = SparseFeedForward(config, config.moe)
            return
        self.gate_up = nn.Linear(config.dim, 2 * config.ffn_dim, bias=False)
        self.down = nn.Linear(config.ffn_dim, config.dim, bias=False)

    @property
    def is_sparse(self) -> bool:
        return "moe" in self._modules

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
        return _project(self.o, "o", out.flatten(1), adapter)

    def _feed_forward(self, x: Tensor, adapter: LayerAdapter | None) -> Tensor:
        if self.is_sparse:
            return self.moe(x)
        gate, up = _project(self.gate_up, "gu", x, adapter).chunk(2, dim=-1)
        return _project(self.down, "dn", silu(gate) * up, adapter)


@dataclass(frozen=True, slots=True)
class LayerAdapter:
    """The adapters of one layer: the canvas adapter's modules, keyed by some of qkv, o, gu and dn, with the gate of
    canvas rows, and the row adapters."""

    index: int
    linears: nn.ModuleDict | None
    gate: Tensor | None  # (rows, 1) in the model's dtype: 1 on canvas rows, 0 on the others
    row_adapters: Sequence[AdapterRows] = ()


def _project(linear: nn.Module, name: str, x: Tensor, adapter: LayerAdapter | None) -> Tensor:
    if adapter is None:
        return linear(x)
    has_canvas = adapter.linears is not None and name in adapter.linears
    y: Tensor = adapter.linears[name](linear, x, adapter.gate) if has_canvas else linear(x)  # type: ignore[index]
    for one in adapter.row_adapters:
        one.add(adapter.index, name, x, y)
    return y


@dataclass(frozen=True, slots=True)
class _PaddedAttend:
    """Calls `attend` without the rows of padding and pads its result."""

    attend: Attend
    num_rows: int
    missing: int

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = self.attend(layer, q[: self.num_rows], k[: self.num_rows], v[: self.num_rows])
        return pad(out, (0, 0, 0, 0, 0, self.missing))


@dataclass(frozen=True, slots=True)
class _ScaledAttend:
    """Calls `attend` with scaled queries."""

    attend: Attend
    scale: Tensor

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attend(layer, q * self.scale.to(q.dtype), k, v)


class Transformer(nn.Module):
    """The whole network. `canvas` is set by `adapters.attach_canvas`."""

    canvas: CanvasAdapter | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        # nn.Embedding's own initialisation on the meta device would import torch's compiler.
        self.tokens = nn.Embedding(config.vocab_size, config.dim, _weight=torch.empty(config.vocab_size, config.dim))
        if not self.tokens.weight.is_meta:
            nn.init.normal_(self.tokens.weight, std=0.02)
        self.layers = nn.ModuleList(self.make_layer(index) for index in range(config.num_layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        if config.tied_head:
            self.head.weight = self.tokens.weight
        self.rope = self.make_rope()
        self.canvas = None
        # The format that a backend computes the linears in, where it is not `dtype`: int8 (set once the linears are
        # packed), fp8 or int4 (a request to the CUDA backend, which rounds when it loads the model).
        self.weight_format: str | None = None

    def make_layer(self, index: int) -> nn.Module:
        return Layer(self.config, index)

    def make_rope(self) -> Rope:
        return Rope(self.config)

    def attention(self, plan: RowPlan, cache: PagedCache) -> Attend:
        """Attention over the rows of one forward, in plain torch."""
        return SdpaAttend(plan, cache)

    def embed(
        self, token_ids: Tensor, mask_index: Tensor | None = None, row_adapters: Sequence[AdapterRows] = ()
    ) -> Tensor:
        """(rows,) ids -> (rows, dim). Where mask_index >= 0, the learned mask embedding of that canvas index."""
        x = self.tokens(token_ids)
        for one in row_adapters:
            one.adapter.replace_embeddings(x, token_ids, one.rows)
        if mask_index is None or self.canvas is None or not len(self.canvas.mask_embedding):
            return x
        masks = embedding(mask_index.clamp(min=0), self.canvas.mask_embedding).to(x.dtype)
        return torch.where(mask_index[:, None] >= 0, masks, x)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        attend: Attend,
        is_canvas: Tensor | None = None,
        row_adapters: Sequence[AdapterRows] = (),
    ) -> Tensor:
        """(rows, dim) -> (rows, dim) after the final norm. Rows where `is_canvas` pass through the canvas adapter."""
        gate = self._canvas_gate(is_canvas, x.dtype)
        scale = self.rope.query_scale(positions)
        if scale is not None:
            attend = _ScaledAttend(attend, scale)
        num_rows, missing = len(x), missing_rows(x, self._row_tile(len(x), gate))
        if missing:
            x, positions = pad(x, (0, 0, 0, missing)), pad(positions, (0, missing))
            gate = gate if gate is None else pad(gate, (0, 0, 0, missing))
            attend = _PaddedAttend(attend, num_rows, missing)
        rotation = self.rope(positions)
        for index, layer in enumerate(self.layers):
            x = layer(x, rotation, attend, self._layer_adapter(index, gate, row_adapters))
        return self.norm(x)[:num_rows]

    def logits(self, hidden: Tensor) -> Tensor:
        """(rows, dim) -> (rows, vocab). Pass only the rows that are needed."""
        return self.head(hidden) if self.has_invariant_linears else on_full_tiles(self.head, hidden)

    @property
    def has_invariant_linears(self) -> bool:
        """Whether every linear is batch-invariant by itself: integer sums need no padding to full tiles."""
        return self.weight_format == "int8"

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights; a tied head counts once."""
        tensors = {t.data_ptr(): t.nbytes for t in (*self.parameters(), *self.buffers())}
        return sum(tensors.values())

    @property
    def device(self) -> torch.device:
        return self.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of activations; weights may be quantised."""
        return self.norm.weight.dtype

    def _row_tile(self, num_rows: int, gate: Tensor | None) -> int:
        """Rows per tile that float operations need. Few rows of an int8 model without an adapter need no padding."""
        return 1 if self.has_invariant_linears and gate is None and num_rows < 4 * ROW_TILE else ROW_TILE

    def _layer_adapter(
        self, index: int, gate: Tensor | None, row_adapters: Sequence[AdapterRows]
    ) -> LayerAdapter | None:
        if gate is None or self.canvas is None:
            return LayerAdapter(index, None, None, row_adapters) if row_adapters else None
        return LayerAdapter(index, self.canvas.layers[index], gate, row_adapters)  # type: ignore[arg-type]

    def _canvas_gate(self, is_canvas: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        if is_canvas is None or self.canvas is None:
            return None
        # Only on a CPU: reading the tensor of an accelerator would synchronise. Callers there pass None instead.
        if is_canvas.device.type == "cpu" and not torch.compiler.is_compiling() and not bool(is_canvas.any()):
            return None
        return is_canvas[:, None].to(dtype)
