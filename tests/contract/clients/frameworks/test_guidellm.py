"""guidellm: a run with answers of a fixed length; every answer has exactly that many tokens."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Server

PROGRAM = f"{os.environ.get('QUICKSILVER_PROGRAMS', '')}/guidellm/bin/guidellm"
NUM_TOKENS, NUM_REQUESTS = 24, 6
PROMPTS = [f"Count from {i} to {i + 9}, then say something about number {i}." for i in range(NUM_REQUESTS)]


def run(server: Server, folder: Path, request_format: str) -> list[dict[str, Any]]:
    """The requests of the report."""
    rows = [{"prompt": prompt, "output_tokens_count": NUM_TOKENS} for prompt in PROMPTS]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    backend = f"kind=openai_http,target={server.url},model=nano,request_format={request_format}"
    command = [
        *(PROGRAM, "run", "--backend", backend, "--profile", "kind=synchronous"),
        *("--data", f"kind=json_file,path={folder / 'data.jsonl'}"),
        *("--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
        *("--output", f"kind=json,path={folder / 'report.json'}", "--disable-console"),
    ]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "HF_HUB_OFFLINE": "1", "LANG": "C.UTF-8"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (benchmark,) = json.loads((folder / "report.json").read_text())["benchmarks"]
    requests: list[dict[str, Any]] = benchmark["requests"]["successful"]
    return requests


@pytest.mark.timeout(240)
@pytest.mark.parametrize("request_format", ["/v1/completions", "/v1/chat/completions"])
def test_answers_of_a_fixed_length(server: Server, tmp_path: Path, request_format: str) -> None:
    requests = run(server, tmp_path, request_format)
    assert len(requests) == NUM_REQUESTS
    assert {request["output_metrics"]["text_tokens"] for request in requests} == {NUM_TOKENS}
