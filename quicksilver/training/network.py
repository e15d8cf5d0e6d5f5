"""The transformer for training: (batch, len, dim) tensors, with a LoRA applied to every row.

Each layer is two pure functions around attention, so torch.compile builds two small graphs for any depth. The result
equals `model.Transformer` with the same adapter on all rows (tests/training/test_network.py). Base weights are frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from quicksilver.model.adapters import LINEARS
from quicksilver.model.transformer import Layer, Rotation, Transformer
from quicksilver.training.loss import compiled

# `"{layer}.{linear}.A"` (rank, in) and `"{layer}.{linear}.B"` (out, rank), fp32.
Lora = Mapping[str, Tensor]


# How the two functions are run: through torch.compile if shapes repeat, `as_written` otherwise.
Wrap = Callable[[Any, Tensor], Any]


def as_written(function: Any, like: Tensor) -> Any:
    return function


class Attention(Protocol):
    """Like `model.Attend`, but batched: q (batch, heads, len, head_dim), k and v (batch, kv_heads, len, head_dim)."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


def adapted_linear(x: Tensor, weight: Tensor, bias: Tensor | None, pair: tuple[Tensor, Tensor] | None) -> Tensor:
    y = F.linear(x, weight, bias)
    if pair is None:
        return y
    return y + F.linear(F.linear(x, pair[0].to(x.dtype)), pair[1].to(x.dtype))


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotated(x: Tensor, rotation: Rotation) -> Tensor:
    """x (batch, heads, len, head_dim); cos and sin broadcast to it."""
    cos, sin = rotation
    wide = x.float()
    left, right = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-right, left), dim=-1) * sin).to(x.dtype)


def before_attention(
    x: Tensor, weights: tuple[Any, ...], pair: Any, rotation: Rotation, heads: tuple[int, int, int], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """weights: attention norm, qkv, its bias or None, q norm or None, k norm or None."""
    norm, qkv_weight, bias, q_norm, k_norm = weights
    num_heads, kv_heads, head_dim = heads
    batch, length, _ = x.shape
    qkv = adapted_linear(normed(x, norm, eps), qkv_weight, bias, pair).view(batch, length, -1, head_dim)
    q, k, v = qkv.split((num_heads, kv_heads, kv_heads), dim=2)
    if q_norm is not None:
        q, k = normed(q, q_norm, eps), normed(k, k_norm, eps)
    return rotated(q.transpose(1, 2), rotation), rotated(k.transpose(1, 2), rotation), v.transpose(1, 2).contiguous()


def after_attention(x: Tensor, attended: Tensor, weights: tuple[Tensor, ...], pairs: Any, eps: float) -> Tensor:
    """weights: o, FFN norm, gate_up, down."""
    o_weight, norm, gate_up, down = weights
    o_pair, gu_pair, dn_pair = pairs
    x = x + adapted_linear(attended.transpose(1, 2).flatten(2), o_weight, None, o_pair)
    gate, up = adapted_linear(normed(x, norm, eps), gate_up, None, gu_pair).chunk(2, dim=-1)
    return x + adapted_linear(F.silu(gate) * up, down, None, dn_pair)


class Network:
    """Runs the layers of a frozen Transformer with an optional LoRA on every row."""

    def __init__(self, model: Transformer, wrap: Wrap = compiled) -> None:
        self.model, self.config, self._wrap = model, model.config, wrap
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        self._layers: list[Layer] = [layer for layer in model.layers if isinstance(layer, Layer)]
        self._heads = (self.config.num_heads, self.config.num_kv_heads, self.config.head_dim)

    @property
    def head(self) -> Tensor:
        return self.model.head.weight

    @property
    def device(self) -> torch.device:
        return self.head.device

    def embed(self, token_ids: Tensor) -> Tensor:
        return F.embedding(token_ids, self.model.tokens.weight)

    def forward(self, x: Tensor, positions: Tensor, attention: Attention, lora: Lora | None = None) -> Tensor:
        """x (batch, len, dim) and positions (batch, len) -> hidden states after the final norm."""
        rotation = self.rotation(positions)
        before, after = self._wrap(before_attention, x), self._wrap(after_attention, x)
        eps = self.config.norm_eps
        for index, layer in enumerate(self._layers):
            pairs = layer_pairs(lora, index)
            q, k, v = before(x, _before_weights(layer), pairs[0], rotation, self._heads, eps)
            x = after(x, attention(index, q, k, v), _after_weights(layer), pairs[1:], eps)
        return normed(x, self.model.norm.weight, eps)

    def rotation(self, positions: Tensor) -> Rotation:
        cos, sin = self.model.rope(positions.reshape(-1))
        shape = (*positions.shape, -1)
        return cos.view(shape)[:, None], sin.view(shape)[:, None]


def layer_pairs(lora: Lora | None, index: int) -> tuple[tuple[Tensor, Tensor] | None, ...]:
    if lora is None:
        return (None,) * len(LINEARS)
    return tuple((lora[f"{index}.{name}.A"], lora[f"{index}.{name}.B"]) for name in LINEARS)


def _before_weights(layer: Layer) -> tuple[Tensor | None, ...]:
    has_norms = layer.config.qk_norm
    q_norm, k_norm = (layer.q_norm.weight, layer.k_norm.weight) if has_norms else (None, None)
    return layer.attn_norm.weight, layer.qkv.weight, layer.qkv.bias, q_norm, k_norm


def _after_weights(layer: Layer) -> tuple[Tensor, ...]:
    return layer.o.weight, layer.ffn_norm.weight, layer.gate_up.weight, layer.down.weight
