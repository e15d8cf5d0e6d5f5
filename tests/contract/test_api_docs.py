"""Every example in docs/api.md runs as it stands against a live server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.live import ANSWER, LiveServer

DOCUMENT = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
SHELL = re.findall(r"```bash\n(.*?)```", DOCUMENT, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)

pytestmark = pytest.mark.contract


def run(live: LiveServer, command: list[str]) -> str:
    environment = {**os.environ, "URL": live.url}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("number", range(len(SHELL)))
def test_shell_examples(live: LiveServer, number: int) -> None:
    example = SHELL[number]
    output = run(live, ["bash", "-euc", example])
    if "curl" not in example:
        assert output == ""
    elif '"stream": true' in example:
        assert output.endswith("data: [DONE]\n\n")
    else:
        replies = list(json_values(output))
        assert len(replies) == example.count("curl ")
        assert all("error" not in reply or reply["error"] is None for reply in replies)


def json_values(text: str) -> Iterator[Any]:
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        yield value


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_examples(live: LiveServer, number: int) -> None:
    assert run(live, [sys.executable, "-c", PYTHON[number]]) == ANSWER


def test_every_path_has_an_example(live: LiveServer) -> None:
    paths = set(re.findall(r"\$URL(/[\w/{}.-]+)", "".join(SHELL)))
    for path in ("chat/completions", "responses", "completions", "fim/completions", "edit/completions"):
        assert f"/v1/{path}" in paths
    for path in (
        "/v1/apply/completions",
        "/v1/models",
        "/v1/tokenize",
        "/v1/detokenize",
        "/feedback",
        "/health",
        "/ready",
    ):
        assert path in paths
