"""Canvas adapters without training."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from quicksilver.model.config import ModelConfig
from quicksilver.model.lowrank import CanvasAdapter, LowRank, linear_shapes


def new_canvas(
    config: ModelConfig, rank: int, max_canvas_len: int, seed: int, token_embedding: Tensor | None = None
) -> CanvasAdapter:
    """An untrained adapter that changes nothing: A uniform, B zero, masks at the mean of the token embeddings."""
    generator = torch.Generator().manual_seed(seed)

    def pair(out_dim: int, in_dim: int) -> LowRank:
        a = (torch.rand(rank, in_dim, generator=generator) * 2 - 1) / math.sqrt(in_dim)
        return LowRank(a, torch.zeros(out_dim, rank))

    shapes = linear_shapes(config)
    layers: list[dict[str, nn.Module]] = [
        {name: pair(*shape) for name, shape in shapes.items()} for _ in range(config.num_layers)
    ]
    if token_embedding is None:
        masks = torch.randn(max_canvas_len, config.dim, generator=generator) * 0.02
    else:
        masks = token_embedding.detach().float().mean(0).cpu().repeat(max_canvas_len, 1)
    return CanvasAdapter(layers, masks)
