"""Rotary position embedding in rotate-half form, with linear, YaRN and Llama-3 scaling of the frequencies.

Angles are computed from the positions, in fp32 for any model dtype. There is no table that has to grow and no
synchronisation with the device, so a captured CUDA graph replays with new positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from quicksilver.model.config import ModelConfig, RopeScaling

# cos and sin, each (rows, 1, head_dim) fp32
Rotation = tuple[Tensor, Tensor]


class Rope(nn.Module):
    """positions (rows,) -> Rotation. Its frequencies stay in fp32 after `.to(bfloat16)`."""

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
