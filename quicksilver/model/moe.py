"""Mixture-of-experts feed-forward: the routers, and experts computed one by one in a fixed order of additions.

A row's result does not depend on the other rows: each expert sees its rows in full tiles, ties in the router go to the
lower index, and the chosen experts of a row are added in the order of their scores.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, pad, silu

from quicksilver.model.attention import ROW_TILE, missing_rows
from quicksilver.model.config import ModelConfig
from quicksilver.model.experts import MoeConfig

# (rows, chosen experts, their weights, gate_up, down, activation) -> the weighted sum of each row, in fp32
ExpertKernel = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, str], Tensor]
# A multiple of the floats in a vector register, and of the vectors in an unrolled loop.
_VECTOR_LEN = 64


class SparseFeedForward(nn.Module):
    """Routed experts, and one shared expert that every row passes through. Parameters follow `ModelConfig.moe`."""

    bias: nn.Parameter | None
    # Computes the routed experts instead of plain torch; set by the backend of a device.
    kernel: ExpertKernel | None = None

    def __init__(self, config: ModelConfig, moe: MoeConfig) -> None:
        super().__init__()
        self.config = moe
        self.router = nn.Parameter(torch.empty(moe.num_experts, config.dim))
        # Added to the scores for the choice of experts only. Always fp32.
        self.bias = nn.Parameter(torch.zeros(moe.num_experts)) if moe.has_bias else None
        self.gate_up = nn.Parameter(torch.empty(moe.num_experts, 2 * moe.ffn_dim, config.dim))
        self.down = nn.Parameter(torch.empty(moe.num_experts, config.dim, moe.ffn_dim))
        if moe.shared_ffn_dim:
            self.shared_gate_up = nn.Linear(config.dim, 2 * moe.shared_ffn_dim, bias=False)
            self.shared_down = nn.Linear(moe.shared_ffn_dim, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.combine(x, *self.choose(x.float()))

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """fp32 rows -> the experts of each row and their weights."""
        whole = pad(x, (0, 0, 0, missing_rows(x, ROW_TILE)))
        return route(linear(whole, self.router.float())[: len(x)], self.bias, self.config)

    def combine(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum of the chosen experts, added in fp32 in the order of `chosen`, and the shared expert."""
        kernel = self.kernel or self._one_by_one
        out = kernel(x, chosen, weights, self.gate_up, self.down, self.config.activation)
        if self.config.shared_ffn_dim:
            out = out + self._expert(x, self.shared_gate_up.weight, self.shared_down.weight).float()
        return out.to(x.dtype)

    def _one_by_one(
        self, x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, activation: str
    ) -> Tensor:
        parts = x.new_zeros(len(x), self.config.top_k, x.shape[-1])
        for expert in chosen.unique().tolist():
            row, place = (chosen == expert).nonzero(as_tuple=True)
            parts[row, place] = self._expert(x[row], gate_up[expert], down[expert])
        out = torch.zeros_like(x, dtype=torch.float32)
        for place in range(self.config.top_k):
            out = out + parts[:, place].float() * weights[:, place, None]
        return out

    def _expert(self, x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        num_rows = len(x)
        x = pad(x, (0, 0, 0, missing_rows(x, ROW_TILE)))
        gate, up = linear(x, gate_up).chunk(2, dim=-1)
        active = gelu(gate, approximate="tanh") if self.config.activation == "gelu_tanh" else silu(gate)
        return linear(active * up, down)[:num_rows]


def set_expert_kernel(model: nn.Module, kernel: ExpertKernel) -> None:
    for module in model.modules():
        if isinstance(module, SparseFeedForward):
            module.kernel = kernel


def route(logits: Tensor, bias: Tensor | None, moe: MoeConfig) -> tuple[Tensor, Tensor]:
    """(rows, experts) fp32 logits -> the chosen experts, best first, and their weights, both (rows, top_k)."""
    scores = _sigmoid(logits) if moe.router == "sigmoid" else logits.softmax(-1)
    ranked = scores if bias is None else scores + bias.float()
    if moe.num_groups > 1:
        ranked = _best_groups(ranked, moe)
    chosen = ranked.argsort(dim=-1, descending=True, stable=True)[:, : moe.top_k]
    weights = scores.gather(-1, chosen)
    if moe.is_normalised:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return chosen, weights * moe.scale


def _sigmoid(logits: Tensor) -> Tensor:
    """With rows of whole vectors: torch's CPU kernel rounds a remainder of a tensor in another way."""
    num_experts = logits.shape[-1]
    return pad(logits, (0, -num_experts % _VECTOR_LEN)).sigmoid()[:, :num_experts]


def _best_groups(ranked: Tensor, moe: MoeConfig) -> Tensor:
    """Scores with -inf outside the best groups. The score of a group is the sum of its two best experts."""
    groups = ranked.view(len(ranked), moe.num_groups, -1)
    totals = groups.topk(2, dim=-1).values.sum(-1)
    kept = totals.argsort(dim=-1, descending=True, stable=True)[:, : moe.top_groups]
    is_kept = torch.zeros_like(totals, dtype=torch.bool).scatter(-1, kept, True)
    return groups.masked_fill(~is_kept[..., None], -torch.inf).flatten(1)
