"""Weights made ready for the compiled loops, kept between starts: one file that is read straight into place.

The file is a cache of ours and never a checkpoint: its name is a hash of everything it was made from and of the layout,
so a change of any of them makes another file. What cannot be written or read is made again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from quicksilver.backends.cpu.linear import Int8Embedding, PackedLinear
from quicksilver.backends.cpu.matmul import aligned
from quicksilver.errors import CheckpointRefused
from quicksilver.model.adapters import LINEARS, CanvasAdapter, linear_shapes
from quicksilver.model.assemble import empty_transformer, finish, replace_module, set_parameter
from quicksilver.model.config import ModelConfig
from quicksilver.model.files.headers import TensorEntry, read_safetensors_header
from quicksilver.model.lowrank import LowRankModules
from quicksilver.model.transformer import Transformer

log = logging.getLogger(__name__)

_LAYOUT = "2"
"""Raise it whenever packing, rounding or the names below change."""
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "U8": torch.uint8, "I8": torch.int8}


def prepared(folder: Path, name: str, files: Iterable[Path], make: Callable[[], Transformer]) -> Transformer:
    """The model kept in `folder` for these files, or what `make` returns, which is then kept instead of older ones."""
    path = folder / name / f"{_digest(files)}.safetensors"
    if path.is_file():
        try:
            return load_prepared(path)
        except (CheckpointRefused, OSError) as error:
            log.warning("prepared weights are made again: %s", error)
    model = make()
    try:
        _keep(model, path)
    except OSError as error:
        log.warning("prepared weights could not be kept: %s", error)
    return model


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256(_LAYOUT.encode())
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:32]


def _keep(model: Transformer, path: Path) -> None:
    """Written beside and moved into place, so that a file which is there is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        partial = Path(folder) / path.name
        save_prepared(model, partial)
        os.replace(partial, path)
    for older in path.parent.glob("*.safetensors"):
        if older != path:
            older.unlink(missing_ok=True)


def save_prepared(model: Transformer, path: Path) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    halves = [] if model.canvas is None else [pair.a for _, _, pair in model.canvas.low_rank()]
    rank = halves[0].out_dim if halves and isinstance(halves[0], PackedLinear) else 0
    save_file(tensors, path, metadata={"config": json.dumps(model.config.to_hf()), "rank": str(rank)})


def load_prepared(path: Path) -> Transformer:
    """Raises CheckpointRefused where the file is not what `save_prepared` writes."""
    header = read_safetensors_header(path)
    try:
        config = ModelConfig.from_hf(json.loads(header.metadata["config"]))
        rank = int(header.metadata["rank"])
    except (KeyError, ValueError) as error:
        raise CheckpointRefused(f"{path.name}: metadata is not ours") from error
    with _Reader(path, header.entries) as reader:
        model = empty_transformer(config)
        for name, linear in [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]:
            shape = (linear.out_features, linear.in_features)
            replace_module(model, name, reader.linear(name, shape, linear.bias is not None))
        replace_module(
            model, "tokens", Int8Embedding(reader.read("tokens.q"), reader.read("tokens.scale"), torch.float32)
        )
        for name in [name for name, _ in model.named_parameters()]:
            set_parameter(model, name, reader.read(name))
        if rank:
            model.canvas = _read_canvas(reader, config, rank)
    model.weight_format = "int8"
    return finish(model, "cpu")


def _read_canvas(reader: _Reader, config: ModelConfig, rank: int) -> CanvasAdapter:
    layers: list[dict[str, nn.Module]] = [{} for _ in range(config.num_layers)]
    shapes = linear_shapes(config)
    for index, layer in enumerate(layers):
        for name in LINEARS:
            out_dim, in_dim = shapes[name]
            at = f"canvas.layers.{index}.{name}"
            a, b = reader.linear(f"{at}.a", (rank, in_dim), False), reader.linear(f"{at}.b", (out_dim, rank), False)
            layer[name] = LowRankModules(a, b)
    return CanvasAdapter(layers, reader.read("canvas.mask_embedding"))


class _Reader:
    """Reads tensors into memory of their own, aligned for vectors."""

    def __init__(self, path: Path, entries: dict[str, TensorEntry]) -> None:
        self._path, self._entries = path, entries

    def __enter__(self) -> _Reader:
        self._file = self._path.open("rb", buffering=0)
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read(self, name: str) -> Tensor:
        entry = self._entries.get(name)
        if entry is None or entry.dtype not in _DTYPES:
            raise CheckpointRefused(f"{self._path.name}: tensor {name} is missing or {entry and entry.dtype}")
        tensor = aligned(entry.shape, _DTYPES[entry.dtype])
        room = memoryview(tensor.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
        self._file.seek(entry.start)
        while len(room):
            count = self._file.readinto(room)
            if not count:
                raise CheckpointRefused(f"{self._path.name}: ends inside {name}")
            room = room[count:]
        return tensor

    def linear(self, name: str, shape: tuple[int, int], has_bias: bool) -> PackedLinear:
        packed, scales = self.read(f"{name}.packed"), self.read(f"{name}.scales")
        return PackedLinear(packed, scales, self.read(f"{name}.bias") if has_bias else None, shape)
