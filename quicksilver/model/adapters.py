"""Attaches adapters to a Transformer, and re-exports what callers need of adapters.

A skill adapter is merged into the weights permanently. A canvas adapter is a LoRA that is applied to canvas rows only;
every other row computes exactly what it computes without the canvas adapter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from quicksilver.errors import CheckpointRefused, InvalidRequest
from quicksilver.model.config import ModelConfig
from quicksilver.model.files.adapter_file import load_adapter, save_adapter
from quicksilver.model.lowrank import LINEARS, Adapter, CanvasAdapter, LowRank, linear_shapes
from quicksilver.model.transformer import Transformer

__all__ = [
    "LINEARS",
    "Adapter",
    "CanvasAdapter",
    "attach_canvas",
    "linear_shapes",
    "load_adapter",
    "merge_skill",
    "save_adapter",
    "stack_adapters",
]


def attach_canvas(model: Transformer, adapter: CanvasAdapter) -> None:
    """Put the canvas adapter on the model, moved to its device and dtype."""
    check_fits(model.config, adapter)
    model.canvas = adapter.to(device=model.device, dtype=model.dtype)


def merge_skill(model: Transformer, adapter: Adapter) -> None:
    """Add the adapter into the model's own weights, in place. The weights must not be quantised yet."""
    check_fits(model.config, adapter)
    with torch.no_grad():
        for index, name, pair in adapter.low_rank():
            weight = float_linear(model, index, name).weight
            weight.copy_((weight.float() + pair.product().to(weight.device)).to(weight.dtype))
        if adapter.embedding_ids is not None and adapter.embedding_rows is not None:
            table = model.tokens.weight
            table[adapter.embedding_ids.to(table.device)] = adapter.embedding_rows.to(table)


def stack_adapters(adapters: Sequence[Adapter]) -> Adapter:
    """One adapter that equals all of them merged in this order: A stacked, B side by side. Of an embedding that several
    replace, the last one counts. Pairs for canvas rows are stacked in the same way."""
    layers: list[dict[str, list[LowRank]]] = [{} for _ in adapters[0].layers]
    for adapter in adapters:
        for index, name, pair in adapter.low_rank():
            layers[index].setdefault(name, []).append(pair)
    result = Adapter([{name: _joined(pairs) for name, pairs in layer.items()} for layer in layers])
    rows = {
        int(token_id): row
        for adapter in adapters
        if adapter.embedding_ids is not None and adapter.embedding_rows is not None
        for token_id, row in zip(adapter.embedding_ids, adapter.embedding_rows, strict=True)
    }
    if rows:
        result.replace_embeddings(torch.tensor(list(rows)), torch.stack(list(rows.values())))
    on_canvas = [adapter.canvas for adapter in adapters if adapter.canvas is not None]
    result.canvas = stack_adapters(on_canvas) if on_canvas else None
    return result.requires_grad_(False)


def _joined(pairs: Sequence[LowRank]) -> LowRank:
    return LowRank(torch.cat([pair.A for pair in pairs]), torch.cat([pair.B for pair in pairs], dim=1))


def float_linear(model: Transformer, index: int, name: str) -> nn.Linear:
    found = getattr(model.layers[index], LINEARS[name])
    if not isinstance(found, nn.Linear):
        raise InvalidRequest("the weights are quantised already: merge adapters before quantising")
    return found


def check_fits(config: ModelConfig, adapter: Adapter) -> None:
    """Refuse an adapter whose shapes belong to another base model."""
    if adapter.canvas is not None:
        check_fits(config, adapter.canvas)
    if len(adapter.layers) != config.num_layers:
        raise CheckpointRefused(f"adapter has {len(adapter.layers)} layers, the model {config.num_layers}")
    shapes = linear_shapes(config)
    for index, name, pair in adapter.low_rank():
        found = (pair.B.shape[0], pair.A.shape[1])
        if found != shapes[name]:
            raise CheckpointRefused(f"adapter layer {index} {name} is {found}, the model's is {shapes[name]}")
    dims: Mapping[str, Tensor | None] = {
        "mask_embedding": getattr(adapter, "mask_embedding", None),
        "embedding.rows": adapter.embedding_rows,
    }
    for name, table in dims.items():
        if table is not None and table.shape[1] != config.dim:
            raise CheckpointRefused(f"adapter {name} has width {table.shape[1]}, the model {config.dim}")
    ids = adapter.embedding_ids
    if ids is not None and len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < config.vocab_size:
        raise CheckpointRefused("adapter replaces embeddings of ids outside the vocabulary")
