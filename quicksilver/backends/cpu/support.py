"""Whether the compiled CPU backend can run on this machine, and where its machine code is cached."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

from quicksilver.hub.resolve import default_home


@cache
def unsupported_reason() -> str | None:
    """Why the compiled backend cannot run here; None if it can. Does not import numba."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"the compiled CPU backend has no code for {platform.machine()}"
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return "the CPU has no AVX2"
    if find_spec("numba") is None:
        return "numba is not installed"
    return None


def has_vnni() -> bool:
    """Whether the CPU has AVX-512 VNNI: one instruction for 64 products of bytes, summed in fours."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and bool(torch.cpu._is_vnni_supported())


def set_code_cache() -> None:
    """Make numba cache machine code in the home folder, in a subfolder named by a hash of this package's sources.

    numba itself checks only the file of a cached function, not the files of the functions that it calls.
    """
    import numba

    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    numba.config.CACHE_DIR = str(default_home() / f"loops-{digest}")
