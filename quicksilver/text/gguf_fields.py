"""Reads the metadata of a GGUF file: names and values, no tensors.

Every step is checked against the end of the file and against a bound, so a damaged or hostile file is refused quickly.
The `gguf` package's reader trusts the file's counts and takes ten seconds for a vocabulary of 150,000 tokens.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from quicksilver.errors import CheckpointRefused

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_FIELDS, _MAX_ITEMS, _MAX_STRING = 1 << 12, 1 << 21, 1 << 24


def read_fields(path: Path) -> dict[str, Any]:
    """All metadata fields. CheckpointRefused where the file is not a readable GGUF."""
    with path.open("rb") as file:
        if path.stat().st_size < 24:
            raise CheckpointRefused(f"{path} is too short for a GGUF")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _FieldReader(data).fields()
            except (ValueError, struct.error) as error:
                raise CheckpointRefused(f"{path} is not a readable GGUF: {error}") from None


class _FieldReader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def fields(self) -> dict[str, Any]:
        magic, version, _, num_fields = self._unpack("4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"starts with {magic!r}, version {version}")
        self._check(num_fields, _MAX_FIELDS, "fields")
        return {self._string(): self._value(self._unpack("I")[0]) for _ in range(num_fields)}

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._unpack(self._form(kind))[0]

    def _array(self) -> list[Any]:
        kind, count = self._unpack("IQ")
        self._check(count, _MAX_ITEMS, "items")
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        return list(self._unpack(f"{count}{self._form(kind)}"))

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        self._check(length, _MAX_STRING, "bytes of text")
        return str(self._take(length), "utf-8")

    def _unpack(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))

    def _take(self, num_bytes: int) -> bytes:
        taken = self._data[self._at : self._at + num_bytes]
        if len(taken) < num_bytes:
            raise ValueError("it ends too early")
        self._at += num_bytes
        return taken

    def _form(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise ValueError(f"value of unknown type {kind}")
        return _NUMBERS[kind]

    def _check(self, count: int, most: int, what: str) -> None:
        if count > most:
            raise ValueError(f"{count} {what}")
