"""A Transformer built empty and filled tensor by tensor, so that memory peaks at the model plus one tensor."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quicksilver.model.config import ModelConfig
from quicksilver.model.rope import Rope
from quicksilver.model.transformer import Transformer


def empty_transformer(config: ModelConfig) -> Transformer:
    """Parameters of the right shape without storage."""
    with torch.device("meta"):
        return Transformer(config)


def place(model: Transformer, target: str, tensor: Tensor) -> None:
    """Put a frozen parameter where the empty one `target` stands."""
    owner, _, name = target.rpartition(".")
    setattr(model.get_submodule(owner), name, nn.Parameter(tensor, requires_grad=False))


def replace_module(model: Transformer, name: str, module: nn.Module) -> None:
    owner, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(owner), attribute, module)


def stretch_context(model: Transformer, factor: float) -> None:
    """Positions by YaRN from now on, for texts `factor` times as long; weights stay as they are."""
    model.config = model.config.stretched(factor)
    model.rope = Rope(model.config).to(model.device)


def finish(model: Transformer, device: torch.device | str) -> Transformer:
    """Once everything is placed: tie the head, move what is computed rather than loaded."""
    if model.config.tied_head and isinstance(model.head, nn.Linear):
        model.head.weight = model.tokens.weight
    model.rope.to(device)
    return model.eval()
