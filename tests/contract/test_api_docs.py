"""Runs every example in docs/reference/http-api.md against a live server."""

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

from quicksilver.server.endpoints.chat.wire import ChatBody
from quicksilver.server.endpoints.completions.wire import CompletionBody
from quicksilver.server.endpoints.responses.wire import ResponsesBody
from tests.contract.live import ANSWER, LiveServer, url_of

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = ("chat", "structured-output", "tools", "code", "reasoning", "streaming-diffusion", "batches")
PAGES = ("reference/http-api", "quickstart", *(f"guides/{name}" for name in GUIDES))


def examples(language: str) -> list[Any]:
    """Each block of a language, named by its page and its number there."""
    found = []
    for page in PAGES:
        blocks = re.findall(rf"```{language}\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL)
        found += [pytest.param(block, id=f"{page}-{i}") for i, block in enumerate(blocks)]
    return found


DOCUMENT = (DOCS / "reference" / "http-api.md").read_text()
SHELL = re.findall(r"```bash\n(.*?)```", DOCUMENT, re.DOTALL)
ACCOUNTS = ("/v1/account", "/v1/organization")

pytestmark = pytest.mark.contract


def run(live: LiveServer, command: list[str]) -> str:
    environment = {**os.environ, "URL": live.url, "ADMIN_URL": url_of(live.admin)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("example", examples("bash"))
def test_shell_examples(live: LiveServer, example: str) -> None:
    output = run(live, ["bash", "-euc", example])
    if "curl" not in example:
        assert output == ""
    elif "/metrics" in example:
        assert "quicksilver_http_requests_total" in output
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


@pytest.mark.parametrize("example", examples("python"))
def test_python_examples(live: LiveServer, example: str) -> None:
    output = run(live, [sys.executable, "-c", example])
    assert output.strip() == ANSWER or output.startswith("name='")


def test_every_path_that_is_served_has_an_example(live: LiveServer) -> None:
    """All served paths except the playground and the accounts, which have their own page."""
    shown = set(re.findall(r"\$(?:ADMIN_)?URL(/[\w/.$-]+)", "".join(SHELL)))
    app = live.listener.config.app
    served = set(app.openapi()["paths"]) | {"/metrics", "/openapi.json"}
    absent = [path for path in served if not any(re.fullmatch(as_pattern(path), example) for example in shown)]
    assert [path for path in absent if not path.startswith(ACCOUNTS)] == []


def as_pattern(path: str) -> str:
    return re.sub(r"\\{[^}]*\\}", ".+", re.escape(path))


def test_every_field_of_a_chat_request_is_in_the_table() -> None:
    table = DOCUMENT[DOCUMENT.index("### Chat request") : DOCUMENT.index("### Chat reply")]
    assert [name for name in ChatBody.model_fields if f"`{name}" not in table] == []


def test_every_field_of_a_completion_and_of_a_response_is_in_its_table() -> None:
    completions = DOCUMENT[DOCUMENT.index("### Completions") : DOCUMENT.index("### Responses")]
    assert [n for n in CompletionBody.model_fields if f"`{n}`" not in completions and n != "model"] == []
    responses = DOCUMENT[DOCUMENT.index("### Responses") : DOCUMENT.index("### Models, tokens")]
    missing = [n for n in ResponsesBody.model_fields if not re.search(rf"`{n}[`.]", responses)]
    assert missing == ["model"]
