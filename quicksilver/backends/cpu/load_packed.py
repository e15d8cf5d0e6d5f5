"""Packs a checkpoint for the CPU backend one tensor at a time: read, merge the skill adapter, quantise, free.

Weights that a GGUF file stores in 4 bits keep the 16 quantisation levels of the file, unless a skill adapter is merged
into them. All other weights become int8. The complete float model is never in memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quicksilver.backends.cpu.linear import PackedLinear
from quicksilver.backends.cpu.matmul import pack_int4
from quicksilver.backends.cpu.quantise import quantise_embedding, quantise_linear
from quicksilver.model.adapters import Adapter, check_fits
from quicksilver.model.assemble import replace_module, set_parameter
from quicksilver.model.files.checkpoint import TensorSource
from quicksilver.model.files.gguf_blocks import Grid
from quicksilver.model.lowrank import LINEARS, LowRank
from quicksilver.model.transformer import Transformer

_ATTRIBUTES = {attribute: name for name, attribute in LINEARS.items()}
# Twice the unit roundoff of fp16 (2 ** -11): the scale and the minimum are each rounded once.
_FP16_ERROR = 2.0**-10


class PackTensors:
    """The `put` argument of `checkpoint.build`: places the tensors of `source` packed, with the skill merged in."""

    def __init__(self, skill: Adapter | None, source: TensorSource) -> None:
        self._skill, self._source = skill, source
        pairs = [] if skill is None else list(skill.low_rank())
        self._pairs: dict[tuple[int, str], LowRank] = {(index, name): pair for index, name, pair in pairs}

    def __call__(self, model: Transformer, target: str, tensor: Tensor) -> None:
        owner, _, kind = target.rpartition(".")
        module = model.get_submodule(owner)
        if owner == "tokens":
            self._put_tokens(model, tensor)
        elif isinstance(module, PackedLinear):
            module.bias = tensor.float()
        elif isinstance(module, nn.Linear) and kind == "weight":
            replace_module(model, owner, self._linear(target, tensor))
        else:
            set_parameter(model, target, tensor)

    def _put_tokens(self, model: Transformer, table: Tensor) -> None:
        if self._skill is not None:
            check_fits(model.config, self._skill)
            if self._skill.embedding_ids is not None and self._skill.embedding_rows is not None:
                table[self._skill.embedding_ids] = self._skill.embedding_rows.to(table)
        replace_module(model, "tokens", quantise_embedding(table))
        if model.config.tied_head:
            replace_module(model, "head", quantise_linear(table))

    def _linear(self, target: str, weight: Tensor) -> nn.Module:
        parts = target.split(".")
        pair = self._pairs.get((int(parts[1]), _ATTRIBUTES[parts[2]])) if parts[0] == "layers" else None
        if pair is not None:
            return quantise_linear(weight.float() + pair.product())
        grid = self._grid(target)
        return quantise_linear(weight) if grid is None else _pack_on_grid(weight, grid)

    def _grid(self, target: str) -> Grid | None:
        """The 4-bit grid of a fused weight; None if a part has more bits, or if fp16 cannot represent the grid."""
        grids = [self._source.grid(part) for part in self._source.parts(target)]
        found = [grid for grid in grids if grid is not None]
        if len(found) < len(grids):
            return None
        scale, minimum = (torch.cat(columns) for columns in zip(*found, strict=True))
        is_close = all(torch.allclose(x.half().float(), x, rtol=_FP16_ERROR, atol=1e-7) for x in (scale, minimum))
        return (scale, minimum) if is_close else None


def _pack_on_grid(weight: Tensor, grid: Grid) -> PackedLinear:
    scale, minimum = (part[:, :, None] for part in grid)
    steps = (weight.unflatten(1, (grid[0].shape[1], -1)) - minimum) / torch.where(scale == 0, 1, scale)
    q = steps.round_().clamp_(0, 15).to(torch.uint8).flatten(1)
    return PackedLinear(*pack_int4(q, *grid), None, (weight.shape[0], weight.shape[1]))
