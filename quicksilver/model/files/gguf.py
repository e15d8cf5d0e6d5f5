"""GGUF files: a bounded parser of the header, and tensors dequantised from the mapped file by the `gguf` package.

The package's own reader trusts the counts and offsets in a file, so the header is parsed and checked here. The package
is used for dequantisation only, and imported only when weights are dequantised. Properties of the format
(permuted query and key heads, a tied table that is stored twice) are handled here too.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quicksilver.errors import CheckpointRefused
from quicksilver.model.config import ModelConfig
from quicksilver.model.families import FAMILIES
from quicksilver.model.files.gguf_blocks import Grid, read_grid
from quicksilver.model.files.headers import (
    MAX_HEADER_BYTES,
    MAX_TENSORS,
    FileHeader,
    TensorEntry,
    check_layout,
    check_name,
    refuse_pickle,
)
from quicksilver.model.files.tensor_names import part_names

# Tensor types that can be read: number in a file -> name, items of a block, bytes of a block.
_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    30: ("BF16", 1, 2),
    8: ("Q8_0", 32, 34),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    12: ("Q4_K", 256, 144),
    14: ("Q6_K", 256, 210),
}
SUPPORTED = tuple(name for name, _, _ in _TYPES.values())
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
# Bounds on a header: real files have tens of fields and strings of a few kilobytes (chat templates).
_MAX_FIELDS = 1 << 16
_MAX_STRING = 16 << 20
# Values dequantised at a time: 16 MiB of fp32.
_CHUNK_ITEMS = 1 << 22


class _Cursor:
    """Reads forward through the header; every read is checked against the end of the file."""

    def __init__(self, data: mmap.mmap, file_name: str) -> None:
        self.data, self.file_name = data, file_name
        self.at = 0
        self.end = min(len(data), MAX_HEADER_BYTES)

    def take(self, num_bytes: int) -> int:
        """Skip `num_bytes`; returns their start."""
        start = self.at
        if num_bytes > self.end - start:
            raise CheckpointRefused(f"{self.file_name}: header exceeds {self.end} bytes: truncated or damaged")
        self.at += num_bytes
        return start

    def number(self, form: str) -> Any:
        return struct.unpack_from(form, self.data, self.take(struct.calcsize(form)))[0]

    def count(self, most: int, what: str) -> int:
        found = int(self.number("<Q"))
        if found > most:
            raise CheckpointRefused(f"{self.file_name}: {found} {what} are too many")
        return found

    def skip_string(self) -> None:
        self.take(self.count(_MAX_STRING, "string bytes"))

    def string(self) -> str:
        length = self.count(_MAX_STRING, "string bytes")
        start = self.take(length)
        try:
            return self.data[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise CheckpointRefused(f"{self.file_name}: a name or value is not UTF-8") from error


def read_gguf_header(path: Path) -> FileHeader:
    """Parse and check a GGUF header. Metadata arrays (vocabularies) are skipped."""
    refuse_pickle(path)
    if path.stat().st_size < 24:
        raise CheckpointRefused(f"{path.name}: too short for a GGUF file")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _walk(_Cursor(data, path.name), len(data))


def _walk(cursor: _Cursor, file_bytes: int) -> FileHeader:
    if cursor.data[:4] != b"GGUF":
        raise CheckpointRefused(f"{cursor.file_name}: not a GGUF file")
    cursor.take(4)
    version = cursor.number("<I")
    if version not in (2, 3):
        raise CheckpointRefused(f"{cursor.file_name}: GGUF version {version} (or byte order) is not supported")
    num_tensors = cursor.count(MAX_TENSORS, "tensors")
    fields = _read_fields(cursor, cursor.count(_MAX_FIELDS, "metadata fields"))
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 8 <= alignment <= 1 << 16 or alignment & (alignment - 1):
        raise CheckpointRefused(f"{cursor.file_name}: alignment {alignment!r} is not a power of two")
    infos = [_read_tensor_info(cursor) for _ in range(num_tensors)]
    data_start = -(-cursor.at // alignment) * alignment
    entries = {info[0]: _entry(info, data_start, alignment, cursor.file_name) for info in infos}
    if len(entries) != num_tensors:
        raise CheckpointRefused(f"{cursor.file_name}: a tensor name appears twice")
    check_layout(entries.values(), (data_start, max(file_bytes, data_start)), alignment, cursor.file_name)
    return FileHeader(entries, fields)


def _read_fields(cursor: _Cursor, count: int) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string()
        if key in fields:
            raise CheckpointRefused(f"{cursor.file_name}: metadata {key[:80]!r} appears twice")
        fields[key] = _read_value(cursor, cursor.number("<I"))
    return fields


def _read_value(cursor: _Cursor, kind: int) -> Any:
    if kind in _SCALARS:
        return cursor.number(_SCALARS[kind])
    if kind == _STRING:
        return cursor.string()
    if kind != _ARRAY:
        raise CheckpointRefused(f"{cursor.file_name}: metadata value of unknown type {kind}")
    item, count = cursor.number("<I"), cursor.count(MAX_HEADER_BYTES, "array items")
    if item in _SCALARS:
        cursor.take(count * struct.calcsize(_SCALARS[item]))
    elif item == _STRING:
        for _ in range(count):
            cursor.skip_string()
    else:
        raise CheckpointRefused(f"{cursor.file_name}: metadata array of unknown type {item}")
    return None


_TensorInfo = tuple[str, tuple[int, ...], int, int]


def _read_tensor_info(cursor: _Cursor) -> _TensorInfo:
    name = cursor.string()
    num_dims = cursor.number("<I")
    if not 1 <= num_dims <= 4:
        raise CheckpointRefused(f"{cursor.file_name}: tensor {name[:80]!r} has {num_dims} dimensions")
    # GGUF stores the fastest dimension first; torch shapes have it last.
    shape = tuple(cursor.count(1 << 40, "items") for _ in range(num_dims))[::-1]
    if 0 in shape:
        raise CheckpointRefused(f"{cursor.file_name}: tensor {name[:80]!r} is empty")
    return name, shape, cursor.number("<I"), cursor.number("<Q")


def _entry(info: _TensorInfo, data_start: int, alignment: int, file_name: str) -> TensorEntry:
    name, shape, kind, offset = info
    check_name(name, file_name)
    if kind not in _TYPES:
        raise _unsupported(kind, f"{file_name}: tensor {name}")
    type_name, block_items, block_bytes = _TYPES[kind]
    if offset % alignment:
        raise CheckpointRefused(f"{file_name}: tensor {name} is not aligned")
    if shape[-1] % block_items:
        raise CheckpointRefused(f"{file_name}: tensor {name}: rows of {shape[-1]} are not whole blocks")
    start = data_start + offset
    return TensorEntry(name, type_name, shape, start, start + math.prod(shape) // block_items * block_bytes)


def _unsupported(kind: int, place: str) -> CheckpointRefused:
    from gguf.constants import GGMLQuantizationType

    if kind not in set(GGMLQuantizationType):
        return CheckpointRefused(f"{place}: unknown type {kind}")
    found, known = GGMLQuantizationType(kind).name, ", ".join(SUPPORTED)
    return CheckpointRefused(f"{place}: type {found} is not supported; known: {known}")


class GgufSource:
    """The tensors of a GGUF file as fp32, a few megabytes at a time. Implements `checkpoint.TensorSource`."""

    def __init__(self, path: Path) -> None:
        self.header = read_gguf_header(path)
        self._bytes = np.asarray(np.memmap(path, mode="r"))  # still mapped; slicing np.memmap itself is slow
        self.config = ModelConfig.from_gguf(self._config_fields())
        self.unused = {"output.weight", "token_embd.weight"} if self.config.tied_head else set[str]()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self.header.entries.items()}

    def parts(self, target: str) -> list[str]:
        if self.config.tied_head and target == "tokens.weight" and "output.weight" in self.header.entries:
            return ["output.weight"]  # the same table twice: the head's copy has more bits
        return part_names(FAMILIES[self.config.family].gguf_names, target)

    def read(self, name: str) -> Iterator[tuple[int, Tensor]]:
        """(first row, rows) parts of a tensor, in order."""
        entry = self.header.entries[name]
        heads = self._permuted_heads(name)
        if heads:
            whole = torch.cat([rows for _, rows in self._parts(entry)])
            yield 0, unpermute(whole, heads)
        else:
            yield from self._parts(entry)

    def grid(self, name: str) -> Grid | None:
        entry = self.header.entries[name]
        grid = read_grid(self._bytes[entry.start : entry.end].reshape(entry.shape[0], -1), entry.dtype)
        heads = self._permuted_heads(name)
        return (unpermute(grid[0], heads), unpermute(grid[1], heads)) if grid and heads else grid

    def _parts(self, entry: TensorEntry) -> Iterator[tuple[int, Tensor]]:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        num_rows = entry.shape[0] if len(entry.shape) > 1 else 1
        data = self._bytes[entry.start : entry.end].reshape(num_rows, -1)
        step = max(_CHUNK_ITEMS * num_rows // max(entry.num_items, 1), 1)
        for first in range(0, num_rows, step):
            rows = dequantize(data[first : first + step], GGMLQuantizationType[entry.dtype])
            # Copied: float tensors come back as a view of the read-only file.
            yield first, torch.from_numpy(np.array(rows, dtype=np.float32)).view(-1, *entry.shape[1:])

    def _permuted_heads(self, name: str) -> int:
        """The number of heads whose rows are stored for interleaved rotation; 0 for tensors in rotate-half order."""
        if not FAMILIES[self.config.family].gguf_interleaves_rope:
            return 0
        kinds = {".attn_q.weight": self.config.num_heads, ".attn_k.weight": self.config.num_kv_heads}
        return next((heads for suffix, heads in kinds.items() if name.endswith(suffix)), 0)

    def _config_fields(self) -> dict[str, Any]:
        embedding, output = self.header.entries.get("token_embd.weight"), self.header.entries.get("output.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise CheckpointRefused("GGUF file has no token_embd.weight")
        is_untied = output is not None and not self._is_same_table(embedding, output)
        return self.header.metadata | {"tensor.token_embd.rows": embedding.shape[0], "tensor.output": is_untied}

    def _is_same_table(self, left: TensorEntry, right: TensorEntry) -> bool:
        """Whether two quantised tables have the same values: their first rows then differ by rounding only."""
        if left.shape != right.shape:
            return False
        _, a = next(self._parts(left))
        _, b = next(self._parts(right))
        rows = min(len(a), len(b), 64)
        return bool((a[:rows] - b[:rows]).norm() < 0.5 * a[:rows].norm())


def unpermute(weight: Tensor, heads: int) -> Tensor:
    """Reorder the rows of each head from interleaved pairs to two halves."""
    rows = weight.shape[0] // heads
    return weight.view(heads, rows // 2, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
