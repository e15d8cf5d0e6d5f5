"""Attention masks of one sequence for SDPA, with padding that makes it batch-invariant on a CPU.

torch's CPU kernel sums keys in blocks of 512, and uses other routines for fewer than 4 rows and for a remainder of
keys. With full tiles its reduction order is always the same, so a row's bits depend only on what it attends to.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

# Rows of a tile of torch's CPU kernels (matmul and attention).
ROW_TILE = 4
# Keys of a block of torch's CPU attention kernel.
_KEY_BLOCK = 512
# A remainder of at most _SMALL_REMAINDER keys is padded to this tile only; tests check that the bits are the same.
_SMALL_KEY_TILE = 32
_SMALL_REMAINDER = 128
# From this many rows on, one mask for all heads takes less memory than a stacked one.
_MANY_ROWS = 64


class Visibility:
    """A (rows, keys) bool mask for SDPA; padded to full tiles on a CPU."""

    def __init__(self, visible: Tensor) -> None:
        self._visible = visible
        self._is_padded = visible.device.type == "cpu"
        self.num_keys = padded_keys(visible.shape[1]) if self._is_padded else visible.shape[1]
        self._attn_mask: Tensor | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        """q (rows, heads, d), k and v (num_keys, kv_heads, d) -> (rows, heads, d). `scale` is a factor on scores; None
        is 1 / sqrt(d)."""
        group = q.shape[1] // k.shape[1]
        is_by_head = self._is_padded and len(q) >= _MANY_ROWS
        if self._attn_mask is None:
            self._attn_mask = self._build_mask(1 if is_by_head else group, q.dtype)
        return (_attend_by_head if is_by_head else _attend_stacked)(q, k, v, self._attn_mask, scale)

    def _build_mask(self, group: int, dtype: torch.dtype) -> Tensor:
        """(1, 1, stacked rows, keys): 0 where visible, else -inf. Rows of padding attend to all, to stay finite."""
        visible = self._visible.repeat_interleave(group, 0)
        bias = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))
        if self._is_padded:
            bias = pad(bias, (0, self.num_keys - bias.shape[1]), value=float("-inf"))
            bias = pad(bias, (0, 0, 0, -len(bias) % ROW_TILE), value=0.0)
        return bias[None, None]


def _attend_stacked(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor, scale: float | None) -> Tensor:
    """Query heads that share a KV head are stacked as rows, so that few rows fill a tile."""
    num_rows, num_heads, head_dim = q.shape
    kv_heads = k.shape[1]
    stacked = q.reshape(num_rows, kv_heads, -1, head_dim).transpose(0, 1).flatten(1, 2)
    missing = attn_mask.shape[2] - stacked.shape[1]
    if missing:
        stacked = pad(stacked, (0, 0, 0, missing))
    keys, values = k.transpose(0, 1)[None], v.transpose(0, 1)[None]
    out = scaled_dot_product_attention(stacked[None], keys, values, attn_mask=attn_mask, scale=scale)
    out = out[0, :, : stacked.shape[1] - missing].reshape(kv_heads, num_rows, -1, head_dim)
    return out.transpose(0, 1).reshape(num_rows, num_heads, head_dim)


def _attend_by_head(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor, scale: float | None) -> Tensor:
    """The same bits with one mask for all heads: for many rows a stacked mask would be large."""
    num_rows, num_heads, head_dim = q.shape
    kv_heads = k.shape[1]
    whole = pad(q, (0, 0, 0, 0, 0, attn_mask.shape[2] - num_rows))
    by_head = whole.reshape(len(whole), kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    keys, values = (t.transpose(0, 1)[:, None].expand(-1, by_head.shape[1], -1, -1) for t in (k, v))
    out = scaled_dot_product_attention(by_head, keys, values, attn_mask=attn_mask, scale=scale)
    return out.permute(2, 0, 1, 3).reshape(len(whole), num_heads, head_dim)[:num_rows]


def padded_keys(num_keys: int) -> int:
    """The number of keys to pass to the CPU kernel so that it sums every prefix of them in the same order."""
    remainder = num_keys % _KEY_BLOCK
    tile = _SMALL_KEY_TILE if remainder <= _SMALL_REMAINDER else _KEY_BLOCK
    return -(-num_keys // tile) * tile
