"""Claude Code, Codex and opencode edit a file through the tool calls of a scripted engine.

They run in a network namespace with loopback only; where the system forbids one, proxies lead to a closed port. The
list of paths that they call is part of the contract: a new one must be answered.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from agent_runs import CHAT, MESSAGES, MODELS, REFUSED, RESPONSES, run_agent

PROGRAMS = os.environ.get("QUICKSILVER_AGENTS", "")

pytestmark = pytest.mark.timeout(240)


def node_program(name: str) -> str:
    if not PROGRAMS:
        pytest.skip("Node is not installed")
    return f"{PROGRAMS}/node_modules/.bin/{name}"


def test_claude_code(tmp_path: Path) -> None:
    # One call more, for the title of the session.
    assert run_agent("claude", sys.executable, tmp_path)["calls"] == [MESSAGES] * 4


def test_codex(tmp_path: Path) -> None:
    told = run_agent("codex", node_program("codex"), tmp_path)
    assert [call for call in told["calls"] if call != MODELS] == [RESPONSES] * 3
    assert MODELS in told["calls"]
    # The entry of the model list is used, with its instructions.
    assert "Model metadata" not in told["output"]
    assert "You are a coding agent in a terminal." in told["prompt"]


def test_opencode(tmp_path: Path) -> None:
    # One call more, for the title of the session.
    assert run_agent("opencode", node_program("opencode"), tmp_path)["calls"] == [CHAT] * 4


def program_of(agent: str) -> str:
    return sys.executable if agent == "claude" else node_program(agent)


@pytest.mark.parametrize("agent", ["claude", "codex", "opencode"])
def test_a_refused_request_is_sent_again(tmp_path: Path, agent: str) -> None:
    told = run_agent(agent, program_of(agent), tmp_path, "refused")
    assert sum(call in REFUSED for call in told["calls"]) == 1


@pytest.mark.parametrize("agent", ["claude", "codex", "opencode"])
def test_a_program_that_is_killed_leaves_nothing_open(tmp_path: Path, agent: str) -> None:
    told = run_agent(agent, program_of(agent), tmp_path, "killed")
    assert told["calls"]
