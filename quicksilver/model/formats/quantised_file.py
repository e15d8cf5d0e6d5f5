"""Quantised checkpoints: a directory whose config.json names the scheme and whose tensors are the stored bits.

The format is described in docs/reference/quantisation.md: parameter names of `Transformer` with a suffix for each stored
part (`layers.0.qkv.q`, `.scale`, `.zero`, `.bias`); norms stay as they are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from quicksilver.errors import CheckpointRefused
from quicksilver.model.assemble import empty_transformer, finish, place, replace_module
from quicksilver.model.config import ModelConfig
from quicksilver.model.files.headers import read_safetensors_header
from quicksilver.model.files.shards import open_tensors, read_json
from quicksilver.model.formats.packing import GROUP_LEN, quantise_int8
from quicksilver.model.formats.quantise import (
    NATIVE_GROUP_LEN,
    Stored,
    check_scheme,
    make_linear,
    mark,
    quantise_weight,
    scheme_of,
)
from quicksilver.model.formats.quantised import Int8Embedding
from quicksilver.model.transformer import Transformer

_KEY = "quicksilver_weights"
_FILE = "quantised.safetensors"
_STORED_DTYPES = {
    "q": (torch.int8, torch.uint8),
    "scale": (torch.float32, torch.bfloat16),
    "zero": (torch.bfloat16,),
    "bias": (torch.float32, torch.bfloat16, torch.float16),
}


def save_quantised(model: Transformer, folder: Path | str, scheme: str) -> None:
    """Write a dense model in few bits; the model itself is left as it is. Merge adapters first: none is written."""
    check_scheme(scheme, model.device)
    tensors: dict[str, Tensor] = {}
    for name, linear in linears(model):
        stored = quantise_weight(linear.weight, linear.bias, scheme_of(name, scheme))
        tensors |= {f"{name}.{part}": tensor.cpu().contiguous() for part, tensor in stored.items()}
    q, scale = quantise_int8(model.tokens.weight)
    tensors |= {"tokens.q": q.cpu(), "tokens.scale": scale.cpu()}
    tensors |= {name: norm.detach().float().cpu() for name, norm in norms(model)}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / _FILE, metadata={"format": "quicksilver", "scheme": scheme})
    config = model.config.to_hf() | {_KEY: {"scheme": scheme, "group_len": GROUP_LEN}}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def linears(model: Transformer) -> list[tuple[str, nn.Linear]]:
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return [(name, module) for name, module in found if not name.startswith("canvas.")]


def norms(model: Transformer) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in model.named_parameters() if "norm" in name]


def is_quantised(path: Path) -> bool:
    return path.is_dir() and (path / _FILE).is_file()


def load_quantised(folder: Path, dtype: torch.dtype, device: torch.device | str) -> Transformer:
    """The model that `save_quantised` wrote; computes in `dtype` on `device`."""
    config = read_json(folder / "config.json")
    scheme = _scheme(config.get(_KEY))
    check_scheme(scheme, torch.device(device))
    model = empty_transformer(ModelConfig.from_hf(config))
    path = folder / _FILE
    reader = _Reader(path, device)
    for name, linear in linears(model):
        stored = reader.stored(name, scheme_of(name, scheme), linear)
        replace_module(model, name, make_linear(stored, scheme_of(name, scheme)))
    table = reader.stored("tokens", "int8", model.tokens)
    replace_module(model, "tokens", Int8Embedding(table["q"], table["scale"], dtype))
    for name, norm in norms(model):
        place(model, name, reader.read(name, tuple(norm.shape), (torch.float32,)).to(dtype))
    reader.refuse_unread()
    mark(model, scheme)
    return finish(model, device)


def _scheme(found: Any) -> str:
    if not isinstance(found, dict) or not isinstance(found.get("scheme"), str) or found.get("group_len") != GROUP_LEN:
        raise CheckpointRefused(f"config.json: {_KEY} does not name a scheme with groups of {GROUP_LEN}")
    return str(found["scheme"])


class _Reader:
    """Tensors of one checked file; every read says what shape and dtype it expects."""

    def __init__(self, path: Path, device: torch.device | str) -> None:
        self.device, self.name = device, path.name
        self._unread = set(read_safetensors_header(path).entries)
        self._file = open_tensors(path)

    def stored(self, name: str, scheme: str, like: nn.Linear | nn.Embedding) -> Stored:
        out_dim, in_dim = like.weight.shape
        shapes = {"q": (out_dim, in_dim), "scale": (out_dim,)}
        if scheme == "int4":
            groups = (out_dim, in_dim // GROUP_LEN)
            shapes = {"q": (out_dim, in_dim // 2), "scale": groups, "zero": groups}
        if scheme == "int8-grouped":
            shapes["scale"] = (out_dim, -(-in_dim // NATIVE_GROUP_LEN))
        if getattr(like, "bias", None) is not None:
            shapes["bias"] = (out_dim,)
        return {part: self.read(f"{name}.{part}", shape, _STORED_DTYPES[part]) for part, shape in shapes.items()}

    def read(self, name: str, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> Tensor:
        if name not in self._unread:
            raise CheckpointRefused(f"{self.name}: tensor {name} is missing")
        tensor: Tensor = self._file.get_tensor(name)
        if tuple(tensor.shape) != shape or tensor.dtype not in dtypes:
            raise CheckpointRefused(f"{self.name}: tensor {name} is {tensor.dtype} {tuple(tensor.shape)}, not {shape}")
        self._unread.discard(name)
        # A copy: the mapped file must not be what the model computes from.
        return tensor.to(self.device, copy=True)

    def refuse_unread(self) -> None:
        if self._unread:
            raise CheckpointRefused(f"{self.name}: tensors this network does not use: {sorted(self._unread)[:3]}")
