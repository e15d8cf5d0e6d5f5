"""The agent programs: command lines, environments and scripted answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.contract.agents.world import Agent, Job, call

SDK_SCRIPT = Path(__file__).with_name("claude_sdk_script.py")


def claude_command(program: str, job: Job) -> list[str]:
    """`program` is a Python interpreter with the Agent SDK, which starts the program of Claude Code."""
    return [program, str(SDK_SCRIPT), job.task]


def claude_environment(job: Job) -> Mapping[str, str]:
    return {"ANTHROPIC_BASE_URL": job.url, "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": job.model}


def claude_answers(workspace: Path) -> list[str]:
    path = str(workspace / "greet.py")
    return [
        call("Read", file_path=path),
        call("Edit", file_path=path, old_string="'hello'", new_string="'good morning'"),
        "greet() returns 'good morning' now.",
    ]


def opencode_command(program: str, job: Job) -> list[str]:
    model = {"name": job.model, "tool_call": True, "limit": {"context": job.context_len, "output": 4096}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{job.url}/v1", "apiKey": "none"},
        "models": {job.model: model},
    }
    config = {"provider": {"quicksilver": provider}, "share": "disabled", "autoupdate": False}
    (job.workspace / "opencode.json").write_text(json.dumps(config))
    return [program, "run", "--model", f"quicksilver/{job.model}", job.task]


def opencode_answers(workspace: Path) -> list[str]:
    path = str(workspace / "greet.py")
    return [
        call("read", filePath=path),
        call("edit", filePath=path, oldString="'hello'", newString="'good morning'"),
        "greet() returns 'good morning' now.",
    ]


def opencode_environment(job: Job) -> Mapping[str, str]:
    return {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}


def codex_command(program: str, job: Job) -> list[str]:
    # With a command for the key, the program reads the model list.
    auth = 'auth={command="echo",args=["none"]}'
    provider = f'{{name="quicksilver",base_url="{job.url}/v1",wire_api="responses",{auth}}}'
    settings = ['model_provider="quicksilver"', f'model="{job.model}"', f"model_providers.quicksilver={provider}"]
    options = [word for setting in settings for word in ("-c", setting)]
    # The sandbox of the program needs namespaces of its own, which a namespace may not make.
    return [program, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", *options, job.task]


def codex_answers(workspace: Path) -> list[str]:
    return [
        call("exec_command", cmd="cat greet.py"),
        call("exec_command", cmd="sed -i \"s/'hello'/'good morning'/\" greet.py"),
        "greet() returns 'good morning' now.",
    ]


def codex_environment(job: Job) -> Mapping[str, str]:
    return {}


def aider_command(program: str, job: Job) -> list[str]:
    quiet = ["--no-check-update", "--no-analytics", "--no-show-model-warnings", "--no-show-release-notes", "--no-git"]
    options = ["--model", f"openai/{job.model}", "--edit-format", job.edit_format, *quiet, "--yes"]
    return [program, *options, "--message", job.task, job.file]


def aider_answers(workspace: Path) -> list[str]:
    change = "<<<<<<< SEARCH\n    return 'hello'\n=======\n    return 'good morning'\n>>>>>>> REPLACE"
    return [f"greet.py\n```python\n{change}\n```\n"]


def aider_environment(job: Job) -> Mapping[str, str]:
    # The second one keeps litellm from loading its table of prices.
    return {"OPENAI_API_BASE": f"{job.url}/v1", "OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


AGENTS = {
    "aider": Agent(aider_command, aider_answers, aider_environment, ""),
    "codex": Agent(codex_command, codex_answers, codex_environment, "exec_command"),
    "opencode": Agent(opencode_command, opencode_answers, opencode_environment, "edit"),
    "claude": Agent(claude_command, claude_answers, claude_environment, "Edit"),
}
