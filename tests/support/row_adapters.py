"""Random adapters of tiny models, as records and as files."""

from __future__ import annotations

from pathlib import Path

import torch

from quicksilver.adapters import AdapterRef
from quicksilver.hub.adapter_files import find_adapter
from quicksilver.model.adapters import Adapter, linear_shapes, save_adapter
from quicksilver.model.config import ModelConfig
from quicksilver.model.lowrank import LINEARS, LowRank
from tests.support.tiny import TINY


def random_adapter(
    seed: int, rank: int = 4, config: ModelConfig = TINY, std: float = 0.3, embedding_ids: tuple[int, ...] = ()
) -> Adapter:
    """An adapter that changes nearly every answer of a tiny model."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * std

    shapes = linear_shapes(config)
    adapter = Adapter(
        [
            {name: LowRank(draw(rank, shapes[name][1]), draw(shapes[name][0], rank)) for name in LINEARS}
            for _ in range(config.num_layers)
        ]
    )
    if embedding_ids:
        adapter.replace_embeddings(torch.tensor(embedding_ids), draw(len(embedding_ids), config.dim))
    return adapter.requires_grad_(False)


def saved(folder: Path, adapter: Adapter, name: str = "adapter", **metadata: str) -> AdapterRef:
    path = folder / f"{name}.safetensors"
    save_adapter(path, adapter, metadata, bits=16)
    return find_adapter(path)
