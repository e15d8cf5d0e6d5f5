"""`GemmaConfig`: the options of DiffusionGemma's layers that other networks do not have. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from quicksilver.errors import CheckpointRefused

_MAX_DIM = 1 << 24
_MAX_THETA = 1e12


@dataclass(frozen=True, slots=True)
class GemmaConfig:
    """Layers of two kinds. The heads of `ModelConfig` are those of the layers that attend to a window; the others
    attend to the whole context, with the heads below, and have no value projection: values are made from keys."""

    is_full: tuple[bool, ...]  # per layer
    window: int  # positions that a row of a window layer attends to, itself included
    full_head_dim: int
    full_kv_heads: int
    full_rope_theta: float = 1e6
    full_partial_rotary: float = 0.25  # share of the angles that are not zero
    logit_softcap: float = 30.0

    def __post_init__(self) -> None:
        sizes = (self.window, self.full_head_dim, self.full_kv_heads)
        if not all(0 < size <= _MAX_DIM for size in sizes) or self.full_head_dim % 2 or self.window < 2:
            raise CheckpointRefused(f"config: window and heads {sizes} of DiffusionGemma cannot be built")
        if not 1 < self.full_rope_theta < _MAX_THETA or not 0 < self.full_partial_rotary <= 1:
            raise CheckpointRefused("config: rope parameters of full-attention layers are out of range")
        if not 0 < self.logit_softcap < 1e6:
            raise CheckpointRefused(f"config: logit softcap {self.logit_softcap} is out of range")

    @property
    def full_kv_dim(self) -> int:
        return self.full_kv_heads * self.full_head_dim

    def num_params(self, dim: int, ffn_dim: int, num_heads: int, head_dim: int, kv_dim: int) -> int:
        """Of all layers without their experts and shared tables: attention, norms, dense feed-forward, scalars, and the
        self-conditioning block."""
        window = dim * (2 * num_heads * head_dim + 2 * kv_dim) + 2 * head_dim
        full = dim * (2 * num_heads * self.full_head_dim + self.full_kv_dim) + 2 * self.full_head_dim
        num_full, feed_forward = sum(self.is_full), 3 * dim * ffn_dim
        layers = num_full * full + (len(self.is_full) - num_full) * window
        return layers + len(self.is_full) * (feed_forward + 8 * dim + 2) + feed_forward + dim
