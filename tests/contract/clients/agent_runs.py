"""Runs an agent program against a scripted engine, in a network namespace where the system allows one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PYTHON = os.environ.get("QUICKSILVER_PYTHON", "")
AFTER = "def greet():\n    return 'good morning'\n"
MESSAGES, RESPONSES, CHAT = "POST /v1/messages 200", "POST /v1/responses 200", "POST /v1/chat/completions 200"
REFUSED = tuple(f"POST /v1/{path} 503" for path in ("messages", "responses", "chat/completions"))
MODELS = "GET /v1/models 200"


@cache
def own_network() -> list[str]:
    """The words that start a program in a network namespace of its own; none where that is not allowed."""
    words = ["unshare", "--map-root-user", "--net"]
    is_allowed = shutil.which("unshare") and subprocess.run([*words, "true"], check=False).returncode == 0
    return words if is_allowed else []


def run_agent(agent: str, program: str, workspace: Path, course: str = "whole") -> dict[str, Any]:
    """`course` is one of `tests.contract.agents.world`; unless the program is killed, it must do its task."""
    command = [*own_network(), PYTHON, "-m", "tests.contract.agents.world", agent, str(workspace), program, course]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "QUICKSILVER_OWN_NETWORK": "1" if own_network() else ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["exit"] == 0, told["output"]
    if course != "killed":
        assert told["file"] == AFTER, told["output"]
    assert told["num_open"] == 0, "a slot of the engine was not given back"
    return told
