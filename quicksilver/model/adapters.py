"""Putting adapters on a Transformer; also the one place to import adapters from.

A skill adapter is added into the weights for good. A canvas adapter changes canvas rows only, either as a gated
low-rank term or as second, merged weights; every other row computes exactly what the parent computes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from quicksilver.errors import CheckpointRefused, InvalidRequest
from quicksilver.model.config import ModelConfig
from quicksilver.model.files.adapter_file import load_adapter, save_adapter
from quicksilver.model.formats.quantise import make_linear, quantise_weight
from quicksilver.model.lowrank import (
    LINEARS,
    Adapter,
    CanvasAdapter,
    LowRank,
    LowRankOf,
    SecondLinear,
    linear_shapes,
    new_canvas,
)
from quicksilver.model.transformer import Transformer

__all__ = [
    "LINEARS",
    "Adapter",
    "CanvasAdapter",
    "attach_canvas",
    "linear_shapes",
    "load_adapter",
    "merge_skill",
    "new_canvas",
    "save_adapter",
]


def attach_canvas(model: Transformer, adapter: CanvasAdapter, form: str = "gated") -> None:
    """Put the adapter on the model, moved to its device and dtype.

    `gated` works on any model. `merged` holds second weights, so it needs dense ones: attach it before quantising.
    """
    check_fits(model.config, adapter)
    if form not in ("gated", "merged"):
        raise InvalidRequest(f"canvas form {form!r} is neither gated nor merged", param="form")
    if form == "merged":
        adapter = _merged(model, adapter)
    elif model.is_exact:
        adapter = _quantised(adapter, "int8-grouped" if model.is_native else "int8-dynamic")
    model.canvas = adapter.to(device=model.device, dtype=model.dtype)


def _merged(model: Transformer, adapter: CanvasAdapter) -> CanvasAdapter:
    layers: list[dict[str, nn.Module]] = [{} for _ in adapter.layers]
    for index, name, pair in adapter.low_rank():
        base = dense_linear(model, index, name)
        merged = nn.Linear(base.in_features, base.out_features, bias=base.bias is not None, device="meta")
        merged.weight = nn.Parameter(_sum(base.weight, pair), requires_grad=False)
        merged.bias = base.bias
        layers[index][name] = SecondLinear(merged)
    return CanvasAdapter(layers, adapter.mask_embedding.detach())


def _quantised(adapter: CanvasAdapter, scheme: str) -> CanvasAdapter:
    """The same adapter in int8, as the weights beside it: in fp32 it would cost as much as they do."""
    layers: list[dict[str, nn.Module]] = [{} for _ in adapter.layers]
    for index, name, pair in adapter.low_rank():
        a, b = (make_linear(quantise_weight(t, None, scheme), scheme) for t in (pair.A, pair.B))
        layers[index][name] = LowRankOf(a, b)
    return CanvasAdapter(layers, adapter.mask_embedding.detach())


def merge_skill(model: Transformer, adapter: Adapter) -> None:
    """Add the adapter into the model's own weights, in place. Do it before quantising."""
    check_fits(model.config, adapter)
    with torch.no_grad():
        for index, name, pair in adapter.low_rank():
            base = dense_linear(model, index, name)
            base.weight.copy_(_sum(base.weight, pair))
        if adapter.embedding_ids is not None and adapter.embedding_rows is not None:
            table = model.tokens.weight
            table[adapter.embedding_ids.to(table.device)] = adapter.embedding_rows.to(table)


def _sum(weight: Tensor, pair: LowRank) -> Tensor:
    return (weight.float() + pair.product().to(weight.device)).to(weight.dtype)


def dense_linear(model: Transformer, index: int, name: str) -> nn.Linear:
    found = getattr(model.layers[index], LINEARS[name])
    if not isinstance(found, nn.Linear):
        raise InvalidRequest("the weights are quantised already: merge adapters before quantising")
    return found


def check_fits(config: ModelConfig, adapter: Adapter) -> None:
    """Refuse an adapter made for another base."""
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
