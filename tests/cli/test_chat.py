"""`quicksilver chat`: in a pipe, and its commands."""

from __future__ import annotations

import os
import select
from collections import deque

import pytest

from quicksilver.cli import chat
from quicksilver.text.conversation import Message
from tests.support.command import quicksilver
from tests.support.weights import MODEL, nano


def test_chat_in_a_pipe_answers_line_by_line() -> None:
    nano()
    talk = quicksilver("chat", "--model", MODEL, "--max-tokens", "8", stdin="What is the capital of France?\n/new\n")
    assert talk.returncode == 0, talk.stderr
    assert "capital of France" in talk.stdout


def lines_of(monkeypatch: pytest.MonkeyPatch, *lines: str) -> list[list[Message]]:
    """Runs a conversation with these lines of input; returns the turns of each question."""
    waiting = deque(lines)
    asked: list[list[Message]] = []

    def read(_: str) -> str:
        if not waiting:
            raise EOFError
        return waiting.popleft()

    def answer_to(turns: list[Message]) -> str:
        asked.append(list(turns))
        return "ok"

    monkeypatch.setattr(chat.out, "input", read)
    chat.talk(answer_to, "Be brief.")
    return asked


def test_commands_are_never_sent_to_the_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = lines_of(monkeypatch, "/help", "/hepl", "one", "/new", "two", "/system Be long.", "three", "/quit", "four")
    assert [turns[-1].content for turns in asked] == ["one", "two", "three"]
    assert [turns[0].content for turns in asked] == ["Be brief.", "Be brief.", "Be long."]
    shown = capsys.readouterr().out
    assert "/hepl is not a command" in shown
    assert "New conversation with the system message: Be brief." in shown
    assert "New conversation with the system message: Be long." in shown
    assert all(name in shown for name in chat.COMMANDS)


def test_a_conversation_keeps_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = lines_of(monkeypatch, "one", "two")
    assert [turn.role for turn in first] == ["system", "user"]
    assert [turn.content for turn in second] == ["Be brief.", "one", "ok", "two"]


def test_what_was_typed_while_a_model_loads_is_discarded() -> None:
    keyboard, terminal = os.openpty()
    with open(keyboard, "wb", buffering=0) as keys, open(terminal) as stream:
        keys.write(b"too early\n")
        assert select.select([stream], [], [], 30)[0], "the line has arrived"
        chat.discard_typed(stream)
        assert not select.select([stream], [], [], 0)[0]


def test_what_a_pipe_holds_is_kept() -> None:
    reading, writing = os.pipe()
    with open(reading) as stream, open(writing, "w") as pipe:
        print("a question", file=pipe, flush=True)
        chat.discard_typed(stream)
        assert stream.readline() == "a question\n"
