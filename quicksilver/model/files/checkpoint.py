"""Load a checkpoint (a safetensors directory or a GGUF file) into a `Transformer`.

Headers are checked before anything is mapped; then tensors are copied one by one. A checkpoint is refused if a
tensor is missing, unknown or has the wrong shape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from quicksilver.errors import CheckpointRefused, ModelNotFound
from quicksilver.model.assemble import empty_transformer, finish, set_parameter
from quicksilver.model.config import ModelConfig
from quicksilver.model.families import FAMILIES
from quicksilver.model.files.gguf import GgufSource
from quicksilver.model.files.gguf_blocks import Grid
from quicksilver.model.files.headers import read_safetensors_header, refuse_pickle
from quicksilver.model.files.shards import checkpoint_name, open_tensors, read_json, shard_paths
from quicksilver.model.files.tensor_names import part_names
from quicksilver.model.transformer import Transformer

_FLOATS = ("F64", "F32", "F16", "BF16")
_STACKED_EXPERTS = re.compile(r"(.*\.mlp\.experts)\.(gate_proj|up_proj|down_proj)(?:\.weight)?")


class TensorSource(Protocol):
    """The tensors of a checkpoint, independent of the file format."""

    config: ModelConfig
    unused: set[str]  # tensors that may be present and are ignored

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]: ...

    def parts(self, target: str) -> list[str]:
        """The tensors whose rows, stacked, are the parameter `target`."""

    def read(self, name: str) -> Iterator[tuple[int, Tensor]]:
        """(first row, rows) parts of one tensor, in order."""

    def grid(self, name: str) -> Grid | None:
        """The 4-bit grid of a matrix; None if the file stores it with more bits."""


def load_model(
    path_or_dir: Path | str, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Transformer:
    """A frozen Transformer in eval mode. Raises ModelNotFound or CheckpointRefused."""
    return build(open_source(Path(path_or_dir)), dtype, device)


def open_source(path: Path) -> TensorSource:
    """Detect the format and check the headers. No weights are read yet."""
    if not path.exists():
        raise ModelNotFound(f"{path}: no such checkpoint")
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        return GgufSource(ggufs[0]) if len(ggufs) == 1 and not any(path.glob("*.safetensors")) else HfSource(path)
    refuse_pickle(path)
    if path.suffix == ".gguf":
        return GgufSource(path)
    raise CheckpointRefused(f"{path.name}: not a .gguf file or a directory with .safetensors")


# put(model, target, tensor) stores the tensor of the parameter `target` in an empty model.
Put = Callable[[Transformer, str, Tensor], None]


def build(
    source: TensorSource, dtype: torch.dtype, device: torch.device | str, put: Put = set_parameter
) -> Transformer:
    model = empty_transformer(source.config)
    shapes, used = source.shapes, set[str]()
    for target, parameter in list(model.named_parameters()):
        parts = source.parts(target)
        # The matrices of all experts are one tensor: their rows follow each other.
        shape = tuple(parameter.flatten(0, 1).shape) if parameter.dim() == 3 else tuple(parameter.shape)
        is_stacked = parameter.dim() == 3 and shapes.get(parts[0]) == tuple(parameter.shape)
        if not is_stacked:
            _check_shapes(target, shape, [(part, shapes.get(part)) for part in parts])
        stacked = torch.empty(shape, dtype=torch.float32 if target.endswith("moe.bias") else dtype, device=device)
        _fill(stacked, source, parts)
        put(model, target, stacked.view(parameter.shape))
        used.update(parts)
    unknown = sorted(set(shapes) - used - source.unused)
    if unknown:
        raise CheckpointRefused(f"tensors that this network does not use: {', '.join(unknown[:3])}")
    return finish(model, device)


def _check_shapes(target: str, wanted: tuple[int, ...], parts: list[tuple[str, tuple[int, ...] | None]]) -> None:
    num_rows = 0
    for name, shape in parts:
        if shape is None:
            raise CheckpointRefused(f"tensor {name} is missing")
        if len(shape) != len(wanted) or shape[1:] != wanted[1:]:
            raise CheckpointRefused(f"tensor {name} is {shape}, which does not fit {target} {wanted}")
        num_rows += shape[0]
    if num_rows != wanted[0]:
        raise CheckpointRefused(f"{target} needs {wanted[0]} rows, the checkpoint has {num_rows}")


def _fill(stacked: Tensor, source: TensorSource, parts: list[str]) -> None:
    base = 0
    for part in parts:
        end = base
        for first, rows in source.read(part):
            rows = rows.flatten(0, 1) if rows.dim() == 3 else rows
            end = base + first + len(rows)
            stacked[base + first : end] = rows.to(stacked.device)
        base = end


class HfSource:
    """A Hugging Face directory: config.json, *.safetensors, and an index if there are several."""

    def __init__(self, folder: Path) -> None:
        self.config = ModelConfig.from_hf(read_json(folder / "config.json"), checkpoint_name(folder))
        self._files: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in shard_paths(folder):
            for entry in read_safetensors_header(path).entries.values():
                if entry.name in self._files or entry.dtype not in _FLOATS:
                    raise CheckpointRefused(f"{path.name}: {entry.name} appears twice or is {entry.dtype}, not a float")
                self._files[entry.name], self.shapes[entry.name] = path, entry.shape
        self._stacked = self._split_experts()
        # Old exports also store the rotary table, and a tied head a second time.
        self.unused = {name for name in self.shapes if name.endswith("rotary_emb.inv_freq")}
        self.unused |= set(self.parts("head.weight")) if self.config.tied_head else set()
        family = FAMILIES[self.config.family]
        self.unused |= {name for name in self.shapes if name.startswith(family.hf_unused or ())}

    def parts(self, target: str) -> list[str]:
        family = FAMILIES[self.config.family]
        parts = part_names(family.hf_names, target, _num_experts(self.config))
        if family.hf_alias is None:
            return parts
        return [name if name in self.shapes else name.replace(*family.hf_alias, 1) for name in parts]

    def _split_experts(self) -> dict[str, tuple[str, int]]:
        """Replaces tensors of all experts by one entry per expert, under the published names. Returns the tensor and
        the index of each. Trainers store experts in one tensor."""
        found: dict[str, tuple[str, int]] = {}
        num_experts = _num_experts(self.config)
        for name, shape in list(self.shapes.items()):
            match = _STACKED_EXPERTS.fullmatch(name)
            if match is None or len(shape) != 3 or shape[0] != num_experts:
                continue
            del self.shapes[name]
            for expert in range(num_experts):
                single = f"{match[1]}.{expert}.{match[2]}.weight"
                found[single], self.shapes[single] = (name, expert), shape[1:]
        return found

    def read(self, name: str) -> Iterator[tuple[int, Tensor]]:
        stored, expert = self._stacked.get(name, (name, None))
        with open_tensors(self._files[stored]) as file:
            yield 0, file.get_tensor(name) if expert is None else file.get_slice(stored)[expert]

    def grid(self, name: str) -> Grid | None:
        return None


def _num_experts(config: ModelConfig) -> int:
    return config.moe.num_experts if config.moe is not None else 0
