"""Some virtual machines report AMX instructions that are illegal. torch then crashes at its first 16-bit product
unless it is told not to use them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

_CHOICE = "ONEDNN_MAX_CPU_ISA"
_PROBE = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(x, x)"


def spare_illegal_instructions() -> None:
    """Disable AMX for this process and its children if it is illegal. Must be called before torch multiplies."""
    facts = Path("/proc/cpuinfo")
    if _CHOICE in os.environ or not facts.exists() or "amx_bf16" not in facts.read_text():
        return
    probe = subprocess.run([sys.executable, "-c", _PROBE], stderr=subprocess.DEVNULL, check=False)
    os.environ[_CHOICE] = "AVX512_CORE_FP16" if probe.returncode == -signal.SIGILL else "ALL"
