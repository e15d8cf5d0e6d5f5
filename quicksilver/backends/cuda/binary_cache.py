"""Compiled kernels on disk, named by what they were compiled from.

A file is the SHA-256 of a binary and the binary. Files that do not match, and folders that cannot be written, cost a
compilation and nothing else.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

log = logging.getLogger("quicksilver.start")

_DIGEST_BYTES = 32


def key_of(parts: Iterable[str]) -> str:
    """A name for a binary that was compiled from these texts. Lengths are hashed too, so that no text can pass for the
    end of one and the beginning of the next."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def cached_binary(folder: Path, key: str, compile_: Callable[[], bytes]) -> bytes:
    """The binary of this key from the folder; compiled and stored if it is missing or damaged."""
    path = folder / f"{key}.cubin"
    binary = _read(path)
    if binary is None:
        binary = compile_()
        _write(path, binary)
    return binary


def _read(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, binary = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return binary if binary and hashlib.sha256(binary).digest() == digest else None


def _write(path: Path, binary: bytes) -> None:
    """Other processes see the whole file or none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as partial:
            partial.write(hashlib.sha256(binary).digest() + binary)
        os.replace(partial.name, path)
    except OSError as error:
        log.warning("the compiled kernel could not be stored in %s: %s", path.parent, error.strerror)
