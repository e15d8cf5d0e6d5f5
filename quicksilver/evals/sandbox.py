"""Runs programs written by a model in a process without network and with limits on time, memory, files and processes.

The child process (`sandbox_child`) sets the limits before the program starts; they cannot be raised afterwards. The
sandbox protects against accidental damage. It is not a security boundary against malicious programs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

_CHILD = Path(__file__).with_name("sandbox_child.py")
SECONDS = 8.0


def passes(program: str, seconds: float = SECONDS) -> bool:
    """Whether the program ends without an exception within `seconds`."""
    return _run([], program, seconds)


@cache
def isolation() -> str:
    """How the network is blocked on this machine, for reports."""
    can_unshare = _run(["--probe"], "", SECONDS)
    return "network namespace" if can_unshare else "sockets disabled in Python only"


def _run(options: list[str], program: str, seconds: float) -> bool:
    with tempfile.TemporaryDirectory(prefix="quicksilver-eval-") as folder:
        child = subprocess.Popen(
            [sys.executable, "-I", "-B", str(_CHILD), str(int(seconds) + 1), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"HOME": folder, "TMPDIR": folder, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            child.communicate(program.encode("utf-8", "replace"), timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(child)
        return child.returncode == 0


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the program and all processes it started."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        child.kill()
    child.communicate()
