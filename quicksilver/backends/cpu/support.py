"""Whether the compiled loops can run on this machine, and where their machine code is kept between starts."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

from quicksilver.hub.resolve import default_home


@cache
def refusal() -> str | None:
    """Why the compiled loops cannot run here; None if they can. Imports nothing heavy."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"no loops for {platform.machine()}"
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return "the CPU has no AVX2"
    if find_spec("numba") is None:
        return "numba is not installed"
    return None


def has_vnni() -> bool:
    """Whether one instruction multiplies 64 bytes by 64 and adds fours of them."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and bool(torch.cpu._is_vnni_supported())


def keep_compiled_code() -> None:
    """Tell numba to keep machine code under the user's cache folder, apart for every state of these sources: numba
    itself looks only at the file of the function it loads, not at what that function calls."""
    import numba

    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    numba.config.CACHE_DIR = str(default_home() / f"loops-{digest}")
