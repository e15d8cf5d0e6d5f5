"""A disk cache of packed models, so that later starts need not pack again.

A file is named by a hash of its source files and of the layout version, so a change of either makes a new file. A file
that cannot be read is packed again; a file that cannot be written is skipped with a warning.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from quicksilver.backends.cpu.linear import Int8Embedding, PackedLinear
from quicksilver.backends.cpu.matmul import aligned_empty
from quicksilver.errors import CheckpointRefused
from quicksilver.model.adapters import LINEARS, CanvasAdapter, linear_shapes
from quicksilver.model.assemble import empty_transformer, finish, replace_module, set_parameter
from quicksilver.model.config import ModelConfig
from quicksilver.model.files.headers import TensorEntry, read_safetensors_header
from quicksilver.model.lowrank import LowRankModules
from quicksilver.model.transformer import Transformer

log = logging.getLogger(__name__)

# Increase it whenever packing, rounding or the names of tensors change.
_LAYOUT_VERSION = "2"
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "U8": torch.uint8, "I8": torch.int8}


def load_or_pack(
    folder: Path, name: str, files: Iterable[Path], config: ModelConfig, make: Callable[[], Transformer]
) -> Transformer:
    """The model cached in `folder` for these files, whose network is `config`; else the result of `make`, which
    replaces older files of `name`."""
    path = folder / name / f"{_digest(files)}.safetensors"
    if path.is_file():
        try:
            return read_packed(path, config)
        except (CheckpointRefused, OSError) as error:
            log.warning("packing the weights again: %s", error)
    model = make()
    try:
        _store(model, path)
    except OSError as error:
        log.warning("the packed weights could not be cached: %s", error)
    return model


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256(_LAYOUT_VERSION.encode())
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:32]


def _store(model: Transformer, path: Path) -> None:
    """Write to a temporary file and rename it, so that a file in the cache is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        partial = Path(folder) / path.name
        save_packed(model, partial)
        os.replace(partial, path)
    for older in path.parent.glob("*.safetensors"):
        if older != path:
            older.unlink(missing_ok=True)


def save_packed(model: Transformer, path: Path) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    halves = [] if model.canvas is None else [pair.a for _, _, pair in model.canvas.low_rank()]
    rank = halves[0].out_dim if halves and isinstance(halves[0], PackedLinear) else 0
    save_file(tensors, path, metadata={"rank": str(rank)})


def read_packed(path: Path, config: ModelConfig) -> Transformer:
    """Raises CheckpointRefused if `save_packed` did not write the file."""
    header = read_safetensors_header(path)
    try:
        rank = int(header.metadata["rank"])
    except (KeyError, ValueError) as error:
        raise CheckpointRefused(f"{path.name}: metadata is not that of a packed model") from error
    with _PackedReader(path, header.entries) as reader:
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


def _read_canvas(reader: _PackedReader, config: ModelConfig, rank: int) -> CanvasAdapter:
    layers: list[dict[str, nn.Module]] = [{} for _ in range(config.num_layers)]
    shapes = linear_shapes(config)
    for index, layer in enumerate(layers):
        for name in LINEARS:
            out_dim, in_dim = shapes[name]
            prefix = f"canvas.layers.{index}.{name}"
            a, b = (
                reader.linear(f"{prefix}.a", (rank, in_dim), False),
                reader.linear(f"{prefix}.b", (out_dim, rank), False),
            )
            layer[name] = LowRankModules(a, b)
    return CanvasAdapter(layers, reader.read("canvas.mask_embedding"))


class _PackedReader:
    """Reads tensors into newly allocated, aligned memory."""

    def __init__(self, path: Path, entries: dict[str, TensorEntry]) -> None:
        self._path, self._entries = path, entries

    def __enter__(self) -> _PackedReader:
        self._file = self._path.open("rb", buffering=0)
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read(self, name: str) -> Tensor:
        entry = self._entries.get(name)
        if entry is None or entry.dtype not in _DTYPES:
            raise CheckpointRefused(f"{self._path.name}: tensor {name} is missing or {entry and entry.dtype}")
        tensor = aligned_empty(entry.shape, _DTYPES[entry.dtype])
        buffer = memoryview(tensor.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
        self._file.seek(entry.start)
        while len(buffer):
            count = self._file.readinto(buffer)
            if not count:
                raise CheckpointRefused(f"{self._path.name}: ends inside {name}")
            buffer = buffer[count:]
        return tensor

    def linear(self, name: str, shape: tuple[int, int], has_bias: bool) -> PackedLinear:
        packed, scales = self.read(f"{name}.packed"), self.read(f"{name}.scales")
        return PackedLinear(packed, scales, self.read(f"{name}.bias") if has_bias else None, shape)
