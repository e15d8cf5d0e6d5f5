"""LoRA adapters: low-rank pairs for the four fused linears of every layer, and the modules that apply them.

`files/adapter_file.py` reads and writes them; `adapters.py` attaches them to a Transformer.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.functional import linear

from quicksilver.model.config import ModelConfig

# Name of a linear in adapters and adapter files -> its attribute on `Layer`.
LINEARS = {"qkv": "qkv", "o": "o", "gu": "gate_up", "dn": "down"}


def linear_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(out, in) of every adapted linear."""
    return {
        "qkv": (config.q_dim + 2 * config.kv_dim, config.dim),
        "o": (config.dim, config.q_dim),
        "gu": (2 * config.ffn_dim, config.dim),
        "dn": (config.dim, config.ffn_dim),
    }


class LowRank(nn.Module):
    """y = W x + gate * B (A x), with A (rank, in) and B (out, rank)."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        super().__init__()
        self.A = nn.Parameter(a)
        self.B = nn.Parameter(b)

    def forward(self, base: nn.Module, x: Tensor, gate: Tensor) -> Tensor:
        return base(x) + linear(linear(x, self.A.to(x.dtype)) * gate, self.B.to(x.dtype))

    def delta(self, x: Tensor) -> Tensor:
        """B (A x)"""
        return linear(linear(x, self.A.to(x.dtype)), self.B.to(x.dtype))

    def product(self) -> Tensor:
        return self.B.detach().float() @ self.A.detach().float()


class LowRankModules(nn.Module):
    """A LowRank whose two matrices are modules, for quantised weights."""

    def __init__(self, a: nn.Module, b: nn.Module) -> None:
        super().__init__()
        self.a, self.b = a, b

    def forward(self, base: nn.Module, x: Tensor, gate: Tensor) -> Tensor:
        return base(x) + self.b(self.a(x) * gate)

    def delta(self, x: Tensor) -> Tensor:
        """B (A x)"""
        found: Tensor = self.b(self.a(x))
        return found


class Adapter(nn.Module):
    """A LowRank per layer and linear. A skill adapter may also replace some token embeddings. `canvas` are pairs that
    are added on canvas rows alone, beside the canvas adapter of the model."""

    embedding_ids: Tensor | None
    embedding_rows: Tensor | None
    canvas: Adapter | None

    def __init__(self, layers: list[dict[str, nn.Module]]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict(layer) for layer in layers)
        self.metadata: dict[str, str] = {}
        self.register_buffer("embedding_ids", None)
        self.register_buffer("embedding_rows", None)
        self.canvas = None

    def low_rank(self) -> Iterator[tuple[int, str, LowRank]]:
        """Every (layer index, name of the linear, pair)."""
        for index, layer in enumerate(self.layers):
            for name, pair in layer.items():  # type: ignore[operator]
                yield index, name, pair

    def replace_embeddings(self, ids: Tensor, rows: Tensor) -> None:
        """fp32 rows (n, dim) that replace the embeddings of n token ids when the skill is merged."""
        self.embedding_ids, self.embedding_rows = ids.long(), rows.float()


class CanvasAdapter(Adapter):
    """The adapter of canvas rows, with one learned mask embedding per canvas index."""

    def __init__(self, layers: list[dict[str, nn.Module]], mask_embedding: Tensor) -> None:
        super().__init__(layers)
        self.mask_embedding = nn.Parameter(mask_embedding)

    @property
    def max_canvas_len(self) -> int:
        return self.mask_embedding.shape[0]
