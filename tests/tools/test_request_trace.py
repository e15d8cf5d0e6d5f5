"""The files that a chat request passes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# A guard against growth: as many files as the request of the trace passed when the limit was set.
MAX_FILES = 35


def test_a_chat_request_passes_few_files() -> None:
    command = [sys.executable, str(ROOT / "tools/request_trace.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    *files, total = done.stdout.splitlines()
    assert total == f"{len(files)} files"
    assert len(files) <= MAX_FILES, files
    assert {
        "quicksilver/server/endpoints/chat/route.py",
        "quicksilver/server/generation/respond.py",
        "quicksilver/engine/engine.py",
        "quicksilver/diffusion/verify.py",
        "quicksilver/model/transformer.py",
    } <= set(files)
    assert all((ROOT / file).is_file() for file in files)
