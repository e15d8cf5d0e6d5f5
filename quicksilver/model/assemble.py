"""Builds a Transformer without storage and fills it tensor by tensor: memory peaks at the model plus one tensor."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quicksilver.model.config import ModelConfig
from quicksilver.model.gemma import DiffusionGemma
from quicksilver.model.transformer import Rope, Transformer


def new_transformer(config: ModelConfig) -> Transformer:
    """The network of a config, with torch's initial values."""
    return DiffusionGemma(config) if config.gemma is not None else Transformer(config)


def empty_transformer(config: ModelConfig) -> Transformer:
    """Parameters of the right shape, on the meta device."""
    with torch.device("meta"):
        return new_transformer(config)


def set_parameter(model: Transformer, target: str, tensor: Tensor) -> None:
    """Replace the parameter `target` by a frozen one that holds `tensor`."""
    owner, _, name = target.rpartition(".")
    setattr(model.get_submodule(owner), name, nn.Parameter(tensor, requires_grad=False))


def replace_module(model: Transformer, name: str, module: nn.Module) -> None:
    owner, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(owner), attribute, module)


def extend_context(model: Transformer, factor: float) -> None:
    """Compute positions by YaRN from now on, for a context `factor` times as long; weights do not change."""
    model.config = model.config.with_yarn(factor)
    model.rope = Rope(model.config).to(model.device)


def finish(model: Transformer, device: torch.device | str) -> Transformer:
    """After the last tensor: tie the head and move the rotary frequencies, which are computed and not loaded."""
    if model.config.tied_head and isinstance(model.head, nn.Linear):
        model.head.weight = model.tokens.weight
    model.rope.to(device)
    return model.eval()
