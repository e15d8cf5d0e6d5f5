"""The kernels of linears, adapters, experts and blocks compile for Hopper, which the interpreter does not check."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("module", "num_lines"),
    [("compile_for_hopper", 43), ("compile_gemma", 19), ("compile_in_threads", 1), ("compile_wide_rounds", 8)],
)
def test_kernels_compile_for_hopper_without_a_gpu(module: str, num_lines: int) -> None:
    """In a separate process, because a process either interprets or compiles."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", f"tests.backends.cuda.kernels.{module}"]
    root = Path(__file__).parents[4]
    made = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[-2000:]
    assert len(made.stdout.splitlines()) == num_lines
