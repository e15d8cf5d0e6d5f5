"""lm-eval's `local-completions` on items of a local file: the same numbers as this project's own runner.

QUICKSILVER_ITEMS names another file of items, for a longer run; `tests/contract/harness_items.py` writes one.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import Server
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

ROOT = Path(__file__).parents[4]
ITEMS = Path(os.environ.get("QUICKSILVER_ITEMS", Path(__file__).with_name("items.jsonl")))


def question_of(item: dict[str, Any]) -> str:
    text = str(item["q"]).rstrip()
    return f"Question: {text}\nAnswer:" if item["task"] == "sciq" else text


@pytest.fixture(scope="module")
def items() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ITEMS.read_text().splitlines()]


@pytest.fixture(scope="module")
def own_scores() -> list[dict[str, Any]]:
    command = [os.environ["QUICKSILVER_PYTHON"], "-m", "tests.contract.harness_scores", str(ITEMS)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.timeout(1200)
def test_scores_equal_our_own_runner(
    server: Server, items: list[dict[str, Any]], own_scores: list[dict[str, Any]]
) -> None:
    model = LocalCompletionsAPI(
        base_url=f"{server.v1}/completions", model="nano", num_concurrent=1, batch_size=4, max_retries=1
    )
    assert model.tokenizer_backend == "remote"
    requests = [
        Instance("loglikelihood", item, (question_of(item), f" {str(choice).strip()}"), number)
        for item in items
        for number, choice in enumerate(item["c"])
    ]
    found = iter(model.loglikelihood(requests, disable_tqdm=True))
    theirs = [[next(found)[0] for _ in item["c"]] for item in items]
    for own, given in zip(own_scores, theirs, strict=True):
        ours = [sum(logprobs) for logprobs in own["logprobs"]]
        assert given == pytest.approx(ours, abs=1e-4)
        assert given.index(max(given)) == ours.index(max(ours))


def test_echo_equals_score(server: Server, own_scores: list[dict[str, Any]]) -> None:
    for own in own_scores[:10]:
        for choice, logprobs in zip(own["choices"], own["logprobs"], strict=True):
            body = {"prompt": own["question"] + choice, "max_tokens": 0, "echo": True, "logprobs": 1}
            reply = httpx.post(f"{server.v1}/completions", json={"model": "nano", **body}, timeout=60).json()
            echoed = reply["choices"][0]["logprobs"]["token_logprobs"]
            assert echoed[len(own["question"]) :] == pytest.approx(logprobs, abs=1e-4)


def test_echo_equals_prompt_logprobs(server: Server) -> None:
    body = {"model": "nano", "prompt": "The capital of France is Paris.", "max_tokens": 0}
    echoed = httpx.post(f"{server.v1}/completions", json={**body, "echo": True, "logprobs": 1}, timeout=60).json()
    scored = httpx.post(f"{server.v1}/completions", json={**body, "prompt_logprobs": 0}, timeout=60).json()
    first, *rest = scored["choices"][0]["prompt_logprobs"]
    assert first is None
    listed = [next(iter(entry.values()))["logprob"] for entry in rest]
    assert echoed["choices"][0]["logprobs"]["token_logprobs"][1:] == pytest.approx(listed, abs=1e-4)


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_fixed_lengths_of_load_tests(server: Server, path: str) -> None:
    """The fields that guidellm sends for outputs of a fixed length."""
    num_tokens = 24
    asked: dict[str, Any] = (
        {"prompt": "Hi"} if path == "completions" else {"messages": [{"role": "user", "content": "Hi"}]}
    )
    usage = {"include_usage": True, "continuous_usage_stats": True}
    fields = {"stop": None, "ignore_eos": True, "max_tokens": num_tokens, "stream": True, "stream_options": usage}
    counts = []
    with httpx.stream("POST", f"{server.v1}/{path}", json={"model": "nano", **asked, **fields}, timeout=60) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                counts.append(json.loads(line[6:])["usage"]["completion_tokens"])
    assert counts == sorted(counts)
    assert counts[-1] == num_tokens
