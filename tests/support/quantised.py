"""Models in int8 that were not read from a checkpoint."""

from __future__ import annotations

from torch import nn

from quicksilver.backends.cpu.quantise import quantise_canvas, quantise_embedding, quantise_linear
from quicksilver.model.assemble import replace_module
from quicksilver.model.moe import SparseFeedForward
from quicksilver.model.transformer import Transformer


def quantise_model(model: Transformer) -> Transformer:
    """Replace every linear, the head and the embedding table; the float weights are freed one by one.

    Merge a skill adapter before. A canvas adapter that is attached is rounded as well. Experts keep their float
    weights: there is no int8 path for them.
    """
    quantise_canvas(model)
    experts = [name for name, module in model.named_modules() if isinstance(module, SparseFeedForward)]
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and not name.startswith(tuple(f"{expert}." for expert in experts)):
            replace_module(model, name, quantise_linear(module.weight, module.bias))
    replace_module(model, "tokens", quantise_embedding(model.tokens.weight))
    model.weight_format = "int8"
    return model
