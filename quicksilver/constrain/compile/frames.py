"""Frames on the pipes of a child process, and its bound on memory. A frame is a 4-byte length and that many bytes."""

from __future__ import annotations

import os
import resource
import struct
from typing import BinaryIO

HEADER = struct.Struct("<I")


def limit_memory(growth_bytes: int) -> None:
    with open("/proc/self/statm", "rb") as file:
        pages = int(file.read().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + growth_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def write_frame(stream: BinaryIO, data: bytes) -> None:
    stream.write(HEADER.pack(len(data)) + data)
    stream.flush()
