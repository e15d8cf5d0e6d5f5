"""Rounds linears, token embeddings and the canvas adapter of a Transformer to int8, in the layout of the matmul."""

from __future__ import annotations

from torch import Tensor, nn

from quicksilver.backends.cpu.linear import Int8Embedding, PackedLinear
from quicksilver.backends.cpu.matmul import pack
from quicksilver.backends.cpu.matmul_tile import GROUP_LEN
from quicksilver.model.adapters import CanvasAdapter
from quicksilver.model.formats.int8 import quantise_int8, quantise_int8_groups
from quicksilver.model.lowrank import LowRankModules
from quicksilver.model.transformer import Transformer


def quantise_linear(weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
    shape = (weight.shape[0], weight.shape[1])
    return PackedLinear(*pack(*quantise_int8_groups(weight, GROUP_LEN)), bias, shape)


def quantise_embedding(table: Tensor) -> Int8Embedding:
    return Int8Embedding(*quantise_int8(table), table.dtype)


def quantise_canvas(model: Transformer) -> None:
    """Round the attached canvas adapter, if there is one: in fp32 it would take as long to read as the int8 weights."""
    if model.canvas is None:
        return
    layers: list[dict[str, nn.Module]] = [{} for _ in model.canvas.layers]
    for index, name, pair in model.canvas.low_rank():
        layers[index][name] = LowRankModules(quantise_linear(pair.A), quantise_linear(pair.B))
    model.canvas = CanvasAdapter(layers, model.canvas.mask_embedding.detach())
