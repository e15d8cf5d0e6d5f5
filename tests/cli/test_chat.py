"""`quicksilver chat` in a pipe."""

from __future__ import annotations

from tests.support.command import quicksilver
from tests.support.weights import MODEL, nano


def test_chat_in_a_pipe_answers_line_by_line() -> None:
    nano()
    talk = quicksilver("chat", "--model", MODEL, "--max-tokens", "8", stdin="What is the capital of France?\n/new\n")
    assert talk.returncode == 0, talk.stderr
    assert "capital of France" in talk.stdout
