"""Which keys the rows of one sequence see, in the form SDPA wants, and the tiles that make a CPU's bits repeatable.

torch's CPU kernel sums keys in blocks of 512, and treats fewer rows than 4 or an odd rest of keys by other routines.
Handed whole tiles it always sums in the same order, so a row's bits depend on what it sees and on nothing else.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

ROW_TILE = 4
_KEY_BLOCK = 512
_SMALL_KEY_TILE = 32
_SMALL_REST = 128


class Visibility:
    """(rows, keys) bool, made ready for SDPA once: padded to whole tiles on a CPU, as it is elsewhere."""

    def __init__(self, visible: Tensor) -> None:
        self._visible = visible
        self._is_padded = visible.device.type == "cpu"
        self.num_keys = whole_tiles(visible.shape[1]) if self._is_padded else visible.shape[1]
        self._attn_mask: Tensor | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (rows, heads, d) over k and v (num_keys, kv_heads, d). Query heads that share a KV head are stacked as rows
        of it, so that keys are never repeated."""
        num_rows, num_heads, head_dim = q.shape
        kv_heads = k.shape[1]
        stacked_rows = num_rows * num_heads // kv_heads
        stacked = q.reshape(num_rows, kv_heads, -1, head_dim).transpose(0, 1).reshape(kv_heads, stacked_rows, head_dim)
        if self._attn_mask is None:
            self._attn_mask = self._build_mask(num_heads // kv_heads, q.dtype)
        missing = self._attn_mask.shape[2] - stacked_rows
        if missing:
            stacked = pad(stacked, (0, 0, 0, missing))
        out = scaled_dot_product_attention(
            stacked[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=self._attn_mask
        )[0, :, :stacked_rows]
        return out.reshape(kv_heads, num_rows, -1, head_dim).transpose(0, 1).reshape(num_rows, num_heads, head_dim)

    def _build_mask(self, group: int, dtype: torch.dtype) -> Tensor:
        """(1, 1, stacked rows, keys): 0 where visible, -inf elsewhere. Rows of padding see all, to stay finite."""
        visible = self._visible.repeat_interleave(group, 0)
        bias = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))
        if self._is_padded:
            bias = pad(bias, (0, self.num_keys - bias.shape[1]), value=float("-inf"))
            bias = pad(bias, (0, 0, 0, -len(bias) % ROW_TILE), value=0.0)
        return bias[None, None]


def whole_tiles(num_keys: int) -> int:
    """How many keys to hand to the CPU kernel so that it sums every prefix of them in the same order."""
    rest = num_keys % _KEY_BLOCK
    tile = _SMALL_KEY_TILE if rest <= _SMALL_REST else _KEY_BLOCK
    return -(-num_keys // tile) * tile
