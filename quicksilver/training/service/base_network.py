"""The network that a fine-tuning job trains on: the model as it is served, in full precision."""

from __future__ import annotations

import torch

from quicksilver.errors import InvalidRequest
from quicksilver.hub.files import ModelFiles
from quicksilver.model.adapters import load_adapter, merge_skill
from quicksilver.model.files.peft import load_peft
from quicksilver.model.transformer import Layer, Transformer
from quicksilver.training.export import load_base
from quicksilver.training.network import Network, as_written
from quicksilver.tuning.settings import TrainerSettings


def files_of(settings: TrainerSettings, name: str) -> ModelFiles:
    if name not in settings.models:
        raise InvalidRequest(f"model {name} is not on this machine", param="model", code="model_not_found")
    return settings.models[name]


def load_network(settings: TrainerSettings, name: str) -> Network:
    chosen = settings.device
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if chosen == "auto" else chosen)
    model = _load_model(settings, name)
    if not all(isinstance(layer, Layer) for layer in model.layers):
        raise InvalidRequest("models with experts cannot be fine-tuned here", param="model")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return Network(model.to(device, dtype).eval(), as_written)


def _load_model(settings: TrainerSettings, name: str) -> Transformer:
    """With the adapter of its name, if it has one."""
    base, path = settings.adapters.get(name, (name, None))
    files = files_of(settings, base)
    model = load_base(files.weights, files.skill)
    if path is not None:
        merge_skill(model, load_peft(path, model.config) if path.is_dir() else load_adapter(path))
    return model
