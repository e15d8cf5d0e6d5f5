"""`quicksilver generate`: plain text on standard output."""

from __future__ import annotations

from tests.support.command import quicksilver
from tests.support.weights import MODEL, nano


def test_generate_prints_plain_text_to_a_pipe() -> None:
    nano()
    question = "What is the capital of France?"
    answer = quicksilver("generate", "-", "--chat", "--model", MODEL, "--max-tokens", "12", stdin=question)
    assert answer.returncode == 0, answer.stderr
    assert "Paris" in answer.stdout
    assert answer.stderr == ""
