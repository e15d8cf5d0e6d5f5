"""Attention without a KV cache, as a reference for the paged implementations."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from quicksilver.model.attention import Attend, Visibility
from quicksilver.model.transformer import Transformer


class DenseAttend:
    """Attention without a cache: rows are `num_sequences` sequences of one length, laid end to end.

    `attn_mask` is boolean, True = visible, broadcastable to (num_sequences, 1, len, len). On a CPU without gradients
    the bits equal those of `SdpaAttend`.
    """

    def __init__(
        self,
        num_sequences: int,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> None:
        self.num_sequences, self.attn_mask, self.is_causal = num_sequences, attn_mask, is_causal
        self.scale = scale
        self._visibility: list[Visibility] | None = None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.device.type == "cpu" and not q.requires_grad:
            return self._attend_exactly(q, k, v)
        q4, k4, v4 = (t.view(self.num_sequences, -1, *t.shape[1:]).transpose(1, 2) for t in (q, k, v))
        out = scaled_dot_product_attention(
            q4, k4, v4, attn_mask=self.attn_mask, is_causal=self.is_causal, enable_gqa=q.shape[1] != k.shape[1],
            scale=self.scale,
        )  # fmt: skip
        return out.transpose(1, 2).reshape(q.shape)

    def _attend_exactly(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = len(q) // self.num_sequences
        if self._visibility is None:
            self._visibility = [Visibility(visible) for visible in self._visible(length)]
        padding = (0, 0, 0, 0, 0, self._visibility[0].num_keys - length)
        sequences = zip(self._visibility, q.split(length), k.split(length), v.split(length), strict=True)
        parts = [seen.attend(q1, pad(k1, padding), pad(v1, padding), self.scale) for seen, q1, k1, v1 in sequences]
        return torch.cat(parts)

    def _visible(self, length: int) -> Tensor:
        """(num_sequences, len, len) bool."""
        visible = torch.ones(length, length, dtype=torch.bool)
        if self.is_causal:
            visible = visible.tril()
        if self.attn_mask is not None:
            visible = visible & self.attn_mask.expand(self.num_sequences, 1, length, length)[:, 0]
        return visible.expand(self.num_sequences, length, length)


def dense_gemma(model: Transformer, num_context: int, num_canvas: int) -> Attend:
    """Without a cache: a causal context and a canvas that sees all of both, in windows where the layer has one."""
    gemma, total = model.config.gemma, num_context + num_canvas
    assert gemma is not None
    index = torch.arange(total)
    full = index[:, None] >= index
    full[num_context:] = True
    near = full & (index[:, None] - index < gemma.window)
    near[num_context:] = index > num_context - gemma.window
    kinds = [DenseAttend(1, visible[None, None], scale=1.0) for visible in (near, full)]
    return lambda layer, q, k, v: kinds[gemma.is_full[layer]](layer, q, k, v)
