"""LoRA adapters on this machine: their files, their content hash, and a store that is addressed by this hash.

An adapter is one safetensors file in the format of this project, or a folder in PEFT's layout. This module reads bytes
only; `model.files` checks what they contain.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from quicksilver.adapters import AdapterRef
from quicksilver.errors import CheckpointRefused, InvalidRequest
from quicksilver.hub.files import default_home

# The files of PEFT's layout, in the order in which they are hashed.
PEFT_FILES = ("adapter_config.json", "adapter_model.safetensors")
# An adapter in the format of this project, in the store.
OWN_FILES = ("adapter.safetensors",)
# Larger adapters are refused before they are read.
MAX_ADAPTER_BYTES = 2 << 30
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_adapter_name(name: str) -> str:
    """Refuses names that could be taken for a path, for a model or for two names."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise InvalidRequest(
            f"adapter name {name[:80]!r}: use 1 to 64 letters, digits, '.', '_' and '-'", param="adapter"
        )
    return name


def find_adapter(path: Path | str) -> AdapterRef:
    """The adapter at `path`, with the hash of its files. Raises CheckpointRefused if there is none."""
    path = Path(path).absolute()
    return AdapterRef(_digest([file.read_bytes() for file in adapter_files(path)]), str(path))


def adapter_files(path: Path) -> list[Path]:
    """The files of an adapter, in the order in which they are hashed."""
    files = [path / name for name in PEFT_FILES] if path.is_dir() else [path]
    for file in files:
        if not file.is_file():
            raise CheckpointRefused(f"adapter {path.name}: {file.name} is missing")
    size = sum(file.stat().st_size for file in files)
    if size > MAX_ADAPTER_BYTES:
        raise CheckpointRefused(f"adapter {path.name}: {size:,} bytes are more than {MAX_ADAPTER_BYTES:,}")
    return files


def store_adapter(files: Mapping[str, bytes], home: Path | None = None) -> AdapterRef:
    """Writes an adapter below `home` under its content hash. Equal files are stored once, and a stored adapter never
    changes. `files` has the names of `PEFT_FILES` or of `OWN_FILES`; every other name is refused."""
    layout = next((names for names in (PEFT_FILES, OWN_FILES) if set(files) == set(names)), None)
    if layout is None:
        found = ", ".join(sorted(repr(name[:80]) for name in files)[:4]) or "no files"
        raise CheckpointRefused(f"an adapter is {' and '.join(PEFT_FILES)}, or {OWN_FILES[0]}; found {found}")
    digest = _digest([files[name] for name in layout])
    folder = (home or default_home()) / "adapters"
    target = folder / digest
    if not target.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=folder))
        for name in layout:
            (partial / name).write_bytes(files[name])
        try:
            os.rename(partial, target)
        except OSError:  # another process has stored the same adapter
            for name in layout:
                (partial / name).unlink()
            partial.rmdir()
    return AdapterRef(digest, str(target if layout is PEFT_FILES else target / OWN_FILES[0]))


def _digest(contents: list[bytes]) -> str:
    if len(contents) == 1:
        return hashlib.sha256(contents[0]).hexdigest()
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in contents)).hexdigest()
