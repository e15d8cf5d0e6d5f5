"""Checks of weight files before their data is mapped: rules for safetensors and GGUF, and the safetensors header.

Weight files are untrusted input. Every defect raises CheckpointRefused with the reason, and no other exception, and
costs no more than reading the header.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quicksilver.errors import CheckpointRefused

# Bounds on headers, far above those of real files.
MAX_HEADER_BYTES = 64 << 20
MAX_TENSORS = 1 << 16
MAX_DIMS = 8
MAX_NAME_LEN = 256

ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip

_PICKLE_SUFFIXES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}
_PICKLE_MAGIC = {b"PK": "a zip archive (a PyTorch pickle)", b"\x80\x02": "a pickle", b"\x80\x04": "a pickle"}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file. `start` and `end` are offsets from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def num_items(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class FileHeader:
    """A checked header: entries are inside the file, do not overlap, and leave no bytes over."""

    entries: dict[str, TensorEntry]
    metadata: dict[str, Any]


def refuse_pickle(path: Path) -> None:
    """Refuse pickles by suffix and by magic bytes: unpickling can execute code. A safetensors file begins with the
    length of its header, which can have the same bytes."""
    if path.suffix.lower() in _PICKLE_SUFFIXES:
        raise CheckpointRefused(f"{path.name}: pickled weights are not supported; convert them to safetensors")
    with path.open("rb") as file:
        start = file.read(9)
    magic, is_safetensors = start[:2], start[4:] == b"\0\0\0\0{"
    if magic in _PICKLE_MAGIC and not is_safetensors:
        raise CheckpointRefused(f"{path.name}: {_PICKLE_MAGIC[magic]} is not supported; convert it to safetensors")


def check_name(name: str, file_name: str) -> None:
    """Refuse names that are not printable or that could be paths outside the folder."""
    is_plain = 0 < len(name) <= MAX_NAME_LEN and name.isprintable()
    if not is_plain or ".." in name or name.startswith(("/", "\\", "~")) or ":" in name:
        raise CheckpointRefused(f"{file_name}: tensor name {name[:80]!r} is not a plain name")


def check_layout(entries: Iterable[TensorEntry], span: tuple[int, int], alignment: int, file_name: str) -> None:
    """Check that the entries fill `span` of the file: in bounds, no overlap, no gap larger than alignment padding."""
    cursor, end = span
    for entry in sorted(entries, key=lambda e: (e.start, e.end)):
        if entry.start < cursor:
            raise CheckpointRefused(f"{file_name}: tensor {entry.name} overlaps its neighbour or the header")
        if entry.start - cursor >= alignment:
            raise CheckpointRefused(f"{file_name}: {entry.start - cursor} unclaimed bytes before {entry.name}")
        if entry.end > end:
            raise CheckpointRefused(f"{file_name}: tensor {entry.name} ends beyond the file: truncated?")
        cursor = entry.end
    if end - cursor >= alignment:
        raise CheckpointRefused(f"{file_name}: {end - cursor} unclaimed bytes after the last tensor")


def read_safetensors_header(path: Path) -> FileHeader:
    """Parse and check the header of one safetensors file."""
    refuse_pickle(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise CheckpointRefused(f"{path.name}: {size} bytes are too few for a safetensors file")
        (length,) = struct.unpack("<Q", prefix)
        if length > min(size - 8, MAX_HEADER_BYTES):
            raise CheckpointRefused(f"{path.name}: header of {length} bytes in a file of {size}")
        raw = file.read(length)
    table = _parse_json(raw, path.name)
    metadata = _metadata(table.pop("__metadata__", {}), path.name)
    if len(table) > MAX_TENSORS:
        raise CheckpointRefused(f"{path.name}: {len(table)} tensors are too many")
    entries = {name: _entry(name, fields, 8 + length, path.name) for name, fields in table.items()}
    check_layout(entries.values(), (8 + length, size), 1, path.name)
    return FileHeader(entries, metadata)


def _parse_json(raw: bytes, file_name: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            raise ValueError("a name appears twice")
        return table

    try:
        table = json.loads(raw.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointRefused(f"{file_name}: header is not valid JSON: {str(error)[:120]}") from error
    if not isinstance(table, dict):
        raise CheckpointRefused(f"{file_name}: header is not a JSON object")
    return table


def _metadata(found: Any, file_name: str) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise CheckpointRefused(f"{file_name}: __metadata__ is not an object of strings")
    return found


def _entry(name: str, fields: Any, data_start: int, file_name: str) -> TensorEntry:
    check_name(name, file_name)
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointRefused(f"{file_name}: tensor {name}: needs dtype, shape and data_offsets")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise CheckpointRefused(f"{file_name}: tensor {name}: dtype {str(dtype)[:40]!r} is unknown")
    if not _is_sizes(shape) or not _is_sizes(offsets) or len(offsets) != 2 or len(shape) > MAX_DIMS:
        raise CheckpointRefused(f"{file_name}: tensor {name}: shape or offsets are not sizes")
    start, end = offsets
    if end - start != math.prod(shape) * ITEM_BYTES[dtype]:
        raise CheckpointRefused(f"{file_name}: tensor {name}: {end - start} bytes do not hold {dtype} {shape}")
    return TensorEntry(name, dtype, tuple(shape), data_start + start, data_start + end)


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 48 for n in value)
