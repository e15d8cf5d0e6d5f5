"""`quicksilver generate`: plain text or one JSON object on standard output."""

from __future__ import annotations

import json

from tests.support.command import quicksilver
from tests.support.weights import MODEL, nano


def test_generate_prints_plain_text_to_a_pipe() -> None:
    nano()
    question = "What is the capital of France?"
    answer = quicksilver("generate", "-", "--chat", "--model", MODEL, "--max-tokens", "12", stdin=question)
    assert answer.returncode == 0, answer.stderr
    assert "Paris" in answer.stdout
    assert answer.stderr == ""


def test_generate_prints_one_json_object() -> None:
    nano()
    question = "What is the capital of France?"
    done = quicksilver("generate", question, "--chat", "--json", "--model", MODEL, "--max-tokens", "4")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["text"]
    assert answer["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["usage"]["forwards"] > 0
    assert answer["seconds"] > 0
