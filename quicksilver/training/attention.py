"""Attention over packed training rows: documents are isolated from each other, and canvases attend to the clean
(unmasked) tokens before them.

On CUDA this uses FlexAttention with block masks, elsewhere SDPA with the same boolean mask. Tests compare both with a
brute-force mask. A mask is built once per step and shared by all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from quicksilver.training.corrupt import Canvases

# A mask rule: (batch, head, query, key) indices to a boolean, written with tensor operations only.
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

# Document number of a prefix that all documents of a row share.
SHARED = -1

# Devices that use FlexAttention block masks. Other devices use boolean masks with SDPA.
FLEX_DEVICES = ("cuda",)

_flex: list[Any] = []


def flex_kernel() -> Any:
    """Return the FlexAttention function, compiled once per process."""
    if not _flex:
        from torch.nn.attention.flex_attention import flex_attention

        _flex.append(torch.compile(flex_attention, dynamic=False))
    return _flex[0]


class MaskedAttention:
    """Attention under one mask rule. Both forms give the same result.

    `is_flex` depends on the device if it is not given. FlexAttention is compiled for seconds for each shape, so it is
    for shapes that repeat.
    """

    def __init__(
        self,
        rule: Rule,
        batch: int,
        num_queries: int,
        num_keys: int,
        device: torch.device,
        is_flex: bool | None = None,
    ) -> None:
        self.is_flex = device.type in FLEX_DEVICES if is_flex is None else is_flex
        if self.is_flex:
            from torch.nn.attention.flex_attention import create_block_mask

            self.block_mask: Any = create_block_mask(rule, batch, None, num_queries, num_keys, device=str(device))
        else:
            self.attn_mask = dense_mask(rule, batch, num_queries, num_keys, device)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        has_groups = q.shape[1] != k.shape[1]
        if self.is_flex:
            out: Tensor = flex_kernel()(q, k, v, block_mask=self.block_mask, enable_gqa=has_groups)
            return out
        if q.is_cuda:
            # The SDPA kernel that accepts a mask does not support grouped queries, and the one that does materialises
            # all scores.
            k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        return scaled_dot_product_attention(q, k, v, attn_mask=self.attn_mask, enable_gqa=has_groups and not q.is_cuda)


def dense_mask(rule: Rule, batch: int, num_queries: int, num_keys: int, device: torch.device) -> Tensor:
    """The rule as a (batch, 1, queries, keys) boolean tensor."""
    b = torch.arange(batch, device=device)[:, None, None]
    q = torch.arange(num_queries, device=device)[None, :, None]
    k = torch.arange(num_keys, device=device)[None, None, :]
    return rule(b, torch.zeros_like(b), q, k)[:, None]


def document_rule(doc_id: Tensor) -> Rule:
    """Causal within a document and the tokens marked `SHARED`. doc_id: (batch, row_len)."""

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & ((doc_id[b, q] == doc_id[b, k]) | (doc_id[b, k] == SHARED))

    return rule


def canvas_rule(canvases: Canvases, doc_id: Tensor) -> Rule:
    """Queries are canvas rows; keys are [canvas rows | clean tokens].

    A canvas row attends to its whole canvas and to the clean tokens of its anchor's document up to the anchor.
    """
    canvas_len = canvases.slot.shape[-1]
    num_canvas_rows = canvases.anchor.shape[1] * canvas_len
    anchor = canvases.anchor
    anchor_doc = doc_id.gather(1, anchor)

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        canvas = q // canvas_len
        token = (k - num_canvas_rows).clamp(min=0)
        in_canvas = (k // canvas_len) == canvas
        in_prefix = (token <= anchor[b, canvas]) & (doc_id[b, token] == anchor_doc[b, canvas])
        return torch.where(k < num_canvas_rows, in_canvas, in_prefix)

    return rule


class CleanAttention:
    """Attention of the clean stream. It stores each layer's keys and values for the canvases."""

    def __init__(self, doc_id: Tensor) -> None:
        batch, row_len = doc_id.shape
        self._masked = MaskedAttention(document_rule(doc_id), batch, row_len, row_len, doc_id.device)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    @classmethod
    def joined(cls, doc_id: Tensor, parts: Sequence[CleanAttention]) -> Self:
        """The stored keys and values of several batches as those of one."""
        whole = cls(doc_id)
        whole.keys, whole.values = (
            [torch.cat(each) for each in zip(*stored, strict=True)]
            for stored in ([part.keys for part in parts], [part.values for part in parts])
        )
        return whole

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.keys.append(k)
        self.values.append(v)
        return self._masked(q, k, v)


class DocumentAttention:
    """Causal attention within each document of a packed row."""

    def __init__(self, doc_id: Tensor, is_flex: bool | None = None) -> None:
        batch, row_len = doc_id.shape
        self._masked = MaskedAttention(document_rule(doc_id), batch, row_len, row_len, doc_id.device, is_flex)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._masked(q, k, v)


class CanvasAttention:
    """Attention of canvas rows over [their canvases | the clean stream's keys and values]."""

    def __init__(self, canvases: Canvases, doc_id: Tensor, clean: CleanAttention) -> None:
        batch, row_len = doc_id.shape
        num_rows = canvases.slot.shape[1] * canvases.slot.shape[2]
        rule = canvas_rule(canvases, doc_id)
        self._masked = MaskedAttention(rule, batch, num_rows, num_rows + row_len, doc_id.device)
        self._clean = clean

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys = torch.cat((k, self._clean.keys[layer]), dim=2)
        values = torch.cat((v, self._clean.values[layer]), dim=2)
        return self._masked(q, keys, values)
