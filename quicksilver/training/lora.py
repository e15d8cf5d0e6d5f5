"""The tensors that training moves: LoRA pairs over the four fused linears of every layer.

Names are `"{layer}.{linear}.A"` and `.B`, fp32. A fresh pair changes nothing, because B is zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from quicksilver.model.adapters import LINEARS, linear_shapes
from quicksilver.model.config import ModelConfig


def num_lora_params(config: ModelConfig, rank: int) -> int:
    return config.num_layers * rank * sum(out + into for out, into in linear_shapes(config).values())


def new_lora(config: ModelConfig, rank: int, seed: int, device: torch.device) -> dict[str, Tensor]:
    """Trainable pairs: A uniform with variance 1 / (3 in), B zero."""
    generator = torch.Generator().manual_seed(seed)
    shapes = linear_shapes(config)
    lora: dict[str, Tensor] = {}
    for layer in range(config.num_layers):
        for name in LINEARS:
            out, into = shapes[name]
            a = (torch.rand(rank, into, generator=generator) * 2 - 1) / math.sqrt(into)
            lora[f"{layer}.{name}.A"] = a.to(device).requires_grad_()
            lora[f"{layer}.{name}.B"] = torch.zeros(out, rank, device=device).requires_grad_()
    return lora
