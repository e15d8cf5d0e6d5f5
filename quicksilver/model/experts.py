"""`MoeConfig`: shape and options of mixture-of-experts layers. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quicksilver.errors import CheckpointRefused

_MAX_EXPERTS = 4096
_MAX_DIM = 1 << 24


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Experts of the feed-forward layers."""

    num_experts: int
    top_k: int
    ffn_dim: int  # of one expert
    router: Literal["softmax", "sigmoid"] = "softmax"
    has_bias: bool = False  # added to the scores for the choice of experts, not for their weights
    num_groups: int = 1
    top_groups: int = 1  # groups that a row may choose experts from
    is_normalised: bool = True  # the weights of the chosen experts sum to `scale`
    scale: float = 1.0
    shared_ffn_dim: int = 0  # of the expert that every row passes through; 0 is none
    num_dense: int = 0  # leading layers without experts
    activation: Literal["silu", "gelu_tanh"] = "silu"

    def __post_init__(self) -> None:
        sizes = (self.num_experts, self.top_k, self.ffn_dim, self.num_groups, self.top_groups)
        fits = self.top_k <= self.num_experts // self.num_groups * self.top_groups <= self.num_experts <= _MAX_EXPERTS
        is_grouped = self.num_groups == 1 or self.num_experts // self.num_groups >= 2
        if min(*sizes) < 1 or not fits or self.num_experts % self.num_groups or not is_grouped:
            raise CheckpointRefused(f"config: experts {self} cannot be built")
        if max(sizes) > _MAX_DIM or self.num_dense < 0 or not 0 <= self.shared_ffn_dim <= _MAX_DIM:
            raise CheckpointRefused(f"config: experts {self} are out of range")

    def num_params(self, dim: int) -> int:
        """Of one layer."""
        experts = 3 * dim * (self.num_experts * self.ffn_dim + self.shared_ffn_dim)
        return experts + self.num_experts * (dim + self.has_bias)
