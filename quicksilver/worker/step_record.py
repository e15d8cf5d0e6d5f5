"""A memory-mapped file with the ids of the requests in the engine's current step.

It outlives a worker that is killed or crashes, so that its client can tell which requests the fatal step computed.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from pathlib import Path

# A step of 256 requests takes about 12 KB; ids that do not fit are left out.
MAX_BYTES = 1 << 16
_LENGTH_BYTES = 4


def record_path(socket_path: Path) -> Path:
    return socket_path.with_suffix(".step")


class StepRecord:
    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(MAX_BYTES)
            self._map = mmap.mmap(file.fileno(), MAX_BYTES)
        self._ids: list[str] = []  # of the body in the file
        self._length = 0

    def write(self, ids: list[str]) -> None:
        self._write_length(0)  # readers see no ids while the body is replaced
        if not ids:
            return
        if ids != self._ids:
            body = "\n".join(ids).encode()[: MAX_BYTES - _LENGTH_BYTES]
            self._map[_LENGTH_BYTES : _LENGTH_BYTES + len(body)] = body
            self._ids, self._length = ids, len(body)
        self._write_length(self._length)

    def _write_length(self, length: int) -> None:
        self._map[:_LENGTH_BYTES] = length.to_bytes(_LENGTH_BYTES, "little")


def clear_step(path: Path) -> None:
    """Removes the ids of the last step: it did not end the worker."""
    with suppress(OSError), path.open("r+b") as file:
        file.write(bytes(_LENGTH_BYTES))


def read_step(path: Path) -> frozenset[str]:
    """The ids in the last recorded step; none if the engine was between two steps."""
    try:
        content = path.read_bytes()
    except OSError:
        return frozenset()
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    text = content[_LENGTH_BYTES : _LENGTH_BYTES + length].decode(errors="replace")
    return frozenset(text.split("\n")) if text else frozenset()
