"""Runs the `quicksilver` command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def quicksilver(*args: str, stdin: str = "", home: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    if home is not None:
        env["QUICKSILVER_HOME"] = str(home)
    command = [sys.executable, "-c", "from quicksilver.cli import main; main()", *args]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, env=env, check=False, timeout=110)
