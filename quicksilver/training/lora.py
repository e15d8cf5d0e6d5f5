"""Trainable tensors: LoRA pairs over the four fused linears of every layer.

Names are `"{layer}.{linear}.A"` and `.B`, in fp32. A new pair is the identity, because B is zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from quicksilver.errors import InvalidRequest
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


@torch.no_grad()
def copy_start(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor], rank: int) -> None:
    """Copy another adapter's tensors into `parameters`, truncated to `rank`."""
    cut = cut_rank(tensors, rank)
    for name, parameter in parameters.items():
        if name not in cut or cut[name].shape != parameter.shape:
            raise InvalidRequest(f"warm_start: {name} is missing or of another shape; take an adapter of this base")
        parameter.copy_(cut[name])


def cut_rank(tensors: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """Truncate every pair to `rank` by its singular values, which gives the nearest product of that rank."""
    cut = dict(tensors)
    for name, a in tensors.items():
        if name.endswith(".A") and a.shape[0] > rank:
            pair = f"{name[:-1]}B"
            cut[name], cut[pair] = _strongest(a, tensors[pair], rank)
    return cut


def _strongest(a: Tensor, b: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Singular vectors of B A without forming the product: both factors are orthogonalised first."""
    q_out, r_out = torch.linalg.qr(b.double())
    q_in, r_in = torch.linalg.qr(a.double().T)
    u, s, v = torch.linalg.svd(r_out @ r_in.T)
    root = s[:rank].sqrt()
    return ((q_in @ v[:rank].T) * root).T.float(), ((q_out @ u[:, :rank]) * root).float()
