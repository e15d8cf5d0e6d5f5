"""aider: it edits a file by search and replace, shows an error, and is stopped while it reads an answer."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from agent_runs import CHAT, run_agent
from conftest import Server
from questions import STORY

PROGRAM = f"{os.environ.get('QUICKSILVER_PROGRAMS', '')}/aider/bin/aider"
QUIET = ("--no-check-update", "--no-analytics", "--no-show-model-warnings", "--no-git", "--yes")

pytestmark = pytest.mark.timeout(240)


def start(server: Server, home: Path, model: str, message: str) -> subprocess.Popen[str]:
    command = [PROGRAM, "--model", f"openai/{model}", *QUIET, "--message", message]
    address = {"OPENAI_API_BASE": server.v1, "OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **address}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=home, env=environment, text=True, **streams)  # type: ignore[call-overload, no-any-return]


def test_edit(tmp_path: Path) -> None:
    assert run_agent("aider", PROGRAM, tmp_path)["calls"] == [CHAT]


def test_refusal(server: Server, tmp_path: Path) -> None:
    with start(server, tmp_path, "gpt-9", "Hi") as program:
        told, _ = program.communicate(timeout=120)
    assert "model `gpt-9` not found" in " ".join(told.split())


def test_abort(server: Server, tmp_path: Path) -> None:
    with server.expecting_an_abort(), start(server, tmp_path, "nano", STORY) as program:
        deadline = time.monotonic() + 120
        while not server.figure("num_requests_running"):
            assert program.poll() is None, program.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        program.kill()
