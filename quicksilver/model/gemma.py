"""The network of DiffusionGemma: Gemma's layers, window attention, and self-conditioning of canvas rows.

Context rows are the encoder of the published network, canvas rows its decoder. Both have the same weights, but for one
scalar per layer. The input of a canvas row is a token and the *soft embedding* of its position: the expected embedding
under the distribution of the step before, zero in the first step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, pad, rms_norm

from quicksilver.model.attention import ROW_TILE, Attend, PagedCache, RowPlan, SdpaAttend, missing_rows, on_full_tiles
from quicksilver.model.config import ModelConfig
from quicksilver.model.experts import MoeConfig
from quicksilver.model.gemma_config import GemmaConfig
from quicksilver.model.moe import SparseFeedForward
from quicksilver.model.row_adapters import AdapterRows
from quicksilver.model.transformer import LayerAdapter, RMSNorm, Rope, Rotation, Transformer, rotate

# Columns of the vocabulary that are added at a time to a soft embedding, in this order.
_VOCAB_CHUNK = 8192
# A multiple of the floats in a vector register, and of the vectors in an unrolled loop.
_VECTOR_LEN = 64


class GemmaExperts(SparseFeedForward):
    """The router reads the residual stream, normed and scaled; each expert's weight has a learned factor."""

    def __init__(self, config: ModelConfig, moe: MoeConfig) -> None:
        super().__init__(config, moe)
        self.eps = config.norm_eps
        self.router_scale = nn.Parameter(torch.ones(config.dim))
        self.expert_scale = nn.Parameter(torch.ones(moe.num_experts))

    def routed(self, x: Tensor, residual: Tensor) -> Tensor:
        """Experts of the normed rows `x`, chosen by the rows `residual`."""
        wide = rms_norm(residual.float(), residual.shape[-1:], None, self.eps)
        chosen, weights = self.choose(wide * self.router_scale.float() * residual.shape[-1] ** -0.5)
        return self.combine(x, chosen, weights * self.expert_scale.float()[chosen])


class GemmaLayer(nn.Module):
    """Norms before and after attention and feed-forward; a dense feed-forward and experts side by side."""

    def __init__(self, config: ModelConfig, gemma: GemmaConfig, index: int) -> None:
        super().__init__()
        assert config.moe is not None
        self.index, self.eps, self.is_full = index, config.norm_eps, gemma.is_full[index]
        self.num_heads = config.num_heads
        self.head_dim = gemma.full_head_dim if self.is_full else config.head_dim
        self.num_kv_heads = gemma.full_kv_heads if self.is_full else config.num_kv_heads
        q_dim, kv_dim = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.attn_norm, self.attn_out_norm = _norms(config)
        self.ffn_norm, self.ffn_out_norm = _norms(config)
        self.moe_norm, self.moe_out_norm = _norms(config)
        self.out_norm = RMSNorm(config.dim, config.norm_eps)
        self.q_norm = RMSNorm(self.head_dim, config.norm_eps)
        self.k_norm = RMSNorm(self.head_dim, config.norm_eps)
        if self.is_full:
            self.qk = nn.Linear(config.dim, q_dim + kv_dim, bias=False)
        else:
            self.qkv = nn.Linear(config.dim, q_dim + 2 * kv_dim, bias=False)
        self.o = nn.Linear(q_dim, config.dim, bias=False)
        self.gate_up = nn.Linear(config.dim, 2 * config.ffn_dim, bias=False)
        self.down = nn.Linear(config.ffn_dim, config.dim, bias=False)
        self.moe = GemmaExperts(config, config.moe)
        self.context_scalar = nn.Parameter(torch.ones(1))
        self.canvas_scalar = nn.Parameter(torch.ones(1))

    def forward(
        self, x: Tensor, rotations: tuple[Rotation, Rotation], attend: Attend, adapter: LayerAdapter | None
    ) -> Tensor:
        x = x + self.attn_out_norm(self._attention(self.attn_norm(x), rotations[self.is_full], attend))
        dense = self.ffn_out_norm(gated(self.gate_up, self.down, self.ffn_norm(x)))
        sparse = self.moe_out_norm(self.moe.routed(self.moe_norm(x), x))
        x = x + self.out_norm(dense + sparse)
        if adapter is None or adapter.gate is None:
            return x * self.context_scalar
        return x * torch.where(adapter.gate > 0, self.canvas_scalar, self.context_scalar)

    def _attention(self, x: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        heads = (self.qk if self.is_full else self.qkv)(x).view(len(x), -1, self.head_dim)
        q, k = heads[:, : self.num_heads], heads[:, self.num_heads : self.num_heads + self.num_kv_heads]
        v = k if self.is_full else heads[:, -self.num_kv_heads :]
        v = rms_norm(v, (self.head_dim,), None, self.eps)
        out = attend(self.index, rotate(self.q_norm(q), rotation), rotate(self.k_norm(k), rotation), v)
        return self.o(out.reshape(len(x), -1))


def _norms(config: ModelConfig) -> tuple[RMSNorm, RMSNorm]:
    """Before and after a block."""
    return RMSNorm(config.dim, config.norm_eps), RMSNorm(config.dim, config.norm_eps)


def gated(gate_up: nn.Linear, down: nn.Linear, x: Tensor) -> Tensor:
    gate, up = gate_up(x).chunk(2, dim=-1)
    return down(gelu(gate, approximate="tanh") * up)


class SelfConditioning(nn.Module):
    """Adds a function of the soft embeddings to the embeddings of canvas rows, and norms the sum."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.pre_norm = RMSNorm(config.dim, config.norm_eps)
        self.gate_up = nn.Linear(config.dim, 2 * config.ffn_dim, bias=False)
        self.down = nn.Linear(config.ffn_dim, config.dim, bias=False)

    def forward(self, x: Tensor, soft: Tensor) -> Tensor:
        whole = pad(self.pre_norm(soft), (0, 0, 0, missing_rows(x, ROW_TILE)))
        return rms_norm(x + gated(self.gate_up, self.down, whole)[: len(x)], x.shape[-1:], None, self.eps)


class GemmaRope(Rope):
    """positions -> the rotation of window layers, and that of full layers."""

    def __init__(self, config: ModelConfig, gemma: GemmaConfig) -> None:
        super().__init__(config)
        self.full = Rope(config, proportional_frequencies(gemma))

    def forward(self, positions: Tensor) -> tuple[Rotation, Rotation]:  # type: ignore[override]
        return super().forward(positions), self.full(positions)


def proportional_frequencies(gemma: GemmaConfig) -> Tensor:
    """Inverse frequencies over the whole head, of which only the first share is not zero."""
    num_angles = int(gemma.full_partial_rotary * gemma.full_head_dim // 2)
    exponents = torch.arange(0, 2 * num_angles, 2, dtype=torch.float32, device="cpu") / gemma.full_head_dim
    return pad(1.0 / (gemma.full_rope_theta**exponents), (0, gemma.full_head_dim // 2 - num_angles))


class GemmaAttend(SdpaAttend):
    """Attention with unscaled scores, over the whole context or over a window, by layer.

    A canvas row sees one token of the context less than the window, and the whole canvas.
    """

    def __init__(self, plan: RowPlan, cache: PagedCache, gemma: GemmaConfig) -> None:
        super().__init__(plan, cache, scale=1.0)
        self._is_full = gemma.is_full
        self._window_views = self.make_views(plan, gemma.window)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attend(self.views if self._is_full[layer] else self._window_views, layer, q, k, v)


class DiffusionGemma(Transformer):
    """The text network of DiffusionGemma; images are not supported."""

    def __init__(self, config: ModelConfig) -> None:
        assert config.gemma is not None
        self._gemma = config.gemma
        super().__init__(config)
        self.self_conditioning = SelfConditioning(config)
        self._no_linears = nn.ModuleDict()

    def make_layer(self, index: int) -> nn.Module:
        return GemmaLayer(self.config, self._gemma, index)

    def make_rope(self) -> Rope:
        return GemmaRope(self.config, self._gemma)

    def attention(self, plan: RowPlan, cache: PagedCache) -> Attend:
        return GemmaAttend(plan, cache, self._gemma)

    def embed(
        self, token_ids: Tensor, mask_index: Tensor | None = None, row_adapters: Sequence[AdapterRows] = ()
    ) -> Tensor:
        return self.tokens(token_ids) * self._embed_scale

    @property
    def _embed_scale(self) -> Tensor:
        """Rounded to the dtype of the weights, as in training."""
        return torch.tensor(math.sqrt(self.config.dim)).to(self.device, self.dtype)

    def condition(self, x: Tensor, is_canvas: Tensor, soft: Tensor) -> Tensor:
        """The input of all rows: embeddings `x`, where canvas rows are conditioned on their soft embeddings
        (canvas rows, dim)."""
        rows = is_canvas.nonzero()[:, 0]
        return x.index_copy(0, rows, self.self_conditioning(x[rows], soft.to(x.device, x.dtype)))

    def soft_embedding(self, logits: Tensor) -> Tensor:
        """(rows, vocab) processed logits -> the expected embeddings (rows, dim), added in fp32."""
        p = logits.to(self.dtype).float().softmax(-1).to(self.dtype)
        p = pad(p, (0, 0, 0, missing_rows(p, ROW_TILE)))
        table, total = self.tokens.weight, torch.zeros(len(p), self.config.dim, device=p.device)
        for start in range(0, p.shape[-1], _VOCAB_CHUNK):
            end = start + _VOCAB_CHUNK
            total = total + linear(p[:, start:end], table[start:end].t()).float()
        return total[: len(logits)].to(self.dtype) * self._embed_scale

    def logits(self, hidden: Tensor) -> Tensor:
        """In fp32, with the softcap. Rows are padded to whole vectors: torch's CPU kernel rounds a remainder in another
        way."""
        cap = self._gemma.logit_softcap
        raw = on_full_tiles(self.head, hidden).float() / cap
        num_columns = raw.shape[-1]
        return pad(raw, (0, -num_columns % _VECTOR_LEN)).tanh()[:, :num_columns] * cap

    def _canvas_gate(self, is_canvas: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        return None if is_canvas is None else is_canvas[:, None].to(dtype)

    def _layer_adapter(
        self, index: int, gate: Tensor | None, row_adapters: Sequence[AdapterRows]
    ) -> LayerAdapter | None:
        return None if gate is None else LayerAdapter(index, self._no_linears, gate)
