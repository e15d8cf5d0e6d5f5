"""Frames on pipes, and the bound on the memory of a process."""

from __future__ import annotations

import io
import subprocess
import sys

from quicksilver.constrain.compile.frames import HEADER, write_frame

ALLOCATE = """
import resource
from quicksilver.constrain.compile.frames import limit_memory
limit_memory(64 * 2**20)
assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
small = bytearray(2**20)
try:
    large = bytearray(256 * 2**20)
except MemoryError:
    print("refused")
"""


def test_a_frame_is_its_length_and_its_bytes() -> None:
    stream = io.BytesIO()
    write_frame(stream, b"abc")
    write_frame(stream, b"")
    assert stream.getvalue() == b"\x03\x00\x00\x00abc\x00\x00\x00\x00"
    assert HEADER.size == 4


def test_memory_may_grow_by_the_limit_only() -> None:
    done = subprocess.run([sys.executable, "-c", ALLOCATE], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "refused", done.stderr
