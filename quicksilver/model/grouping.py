"""A dense checkpoint becomes packed int8 and is never held whole: a tensor is read, merged, rounded and dropped."""

from __future__ import annotations

from torch import Tensor, nn

from quicksilver.model.adapters import Adapter, check_fits
from quicksilver.model.assemble import place, replace_module
from quicksilver.model.lowrank import LINEARS, LowRank
from quicksilver.model.native.linear import GroupedInt8Linear
from quicksilver.model.packing import quantise_int8
from quicksilver.model.quantise import make_linear, quantise_weight
from quicksilver.model.quantised import Int8Embedding
from quicksilver.model.transformer import Transformer

_ATTRIBUTES = {attribute: name for name, attribute in LINEARS.items()}


class PutGrouped:
    """How `weights.build` places tensors when the model is to be int8-grouped. The skill is merged on the way."""

    def __init__(self, skill: Adapter | None) -> None:
        self._skill = skill
        pairs = [] if skill is None else list(skill.low_rank())
        self._pairs: dict[tuple[int, str], LowRank] = {(index, name): pair for index, name, pair in pairs}

    def __call__(self, model: Transformer, target: str, tensor: Tensor) -> None:
        owner, _, kind = target.rpartition(".")
        module = model.get_submodule(owner)
        if owner == "tokens":
            self._put_tokens(model, tensor)
        elif isinstance(module, GroupedInt8Linear):
            module.bias = tensor.float()
        elif isinstance(module, nn.Linear) and kind == "weight":
            replace_module(model, owner, _packed(self._merged(owner, tensor)))
        else:
            place(model, target, tensor)

    def _put_tokens(self, model: Transformer, table: Tensor) -> None:
        if self._skill is not None:
            check_fits(model.config, self._skill)
            if self._skill.embedding_ids is not None and self._skill.embedding_rows is not None:
                table[self._skill.embedding_ids] = self._skill.embedding_rows.to(table)
        q, scale = quantise_int8(table)
        replace_module(model, "tokens", Int8Embedding(q, scale, table.dtype))
        if model.config.tied_head:
            replace_module(model, "head", _packed(table))

    def _merged(self, owner: str, weight: Tensor) -> Tensor:
        parts = owner.split(".")
        pair = self._pairs.get((int(parts[1]), _ATTRIBUTES[parts[2]])) if parts[0] == "layers" else None
        return weight if pair is None else weight.float() + pair.product()


def _packed(weight: Tensor) -> nn.Module:
    return make_linear(quantise_weight(weight, None, "int8-grouped"), "int8-grouped")
