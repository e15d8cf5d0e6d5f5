"""`quicksilver chat --url` against a scripted server."""

from __future__ import annotations

import json

import httpx
import pytest
from typer.testing import CliRunner

from quicksilver.cli import chat
from quicksilver.cli.app import app
from quicksilver.cli.remote_chat import RemoteModel
from quicksilver.core import DecodeParams
from quicksilver.errors import QuicksilverError
from quicksilver.text.conversation import Message

STREAM = (
    'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n: ping\n\n'
    'data: {"choices": [{"delta": {"reasoning_content": "hm. "}}]}\n\n'
    'data: {"choices": [{"delta": {"content": "Hello"}}]}\n\ndata: {"choices": [], "usage": {}}\n\ndata: [DONE]\n\n'
)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[httpx.Request]:
    """The requests that the client sent. A model named `none` is refused, one named `fails` breaks off."""
    requests: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        model = json.loads(request.content)["model"]
        if model == "none":
            return httpx.Response(404, json={"error": {"message": "model `none` not found"}})
        if model == "fails":
            return httpx.Response(200, text='data: {"error": {"message": "the engine died"}}\n\n')
        return httpx.Response(200, text=STREAM)

    client = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **given: client(transport=httpx.MockTransport(handle), **given))
    return requests


def ask(model: RemoteModel, effort: str | None = None) -> tuple[str, str]:
    """Reasoning and text of the answer."""
    deltas = list(model.answer([Message("user", "Hi")], DecodeParams(max_new_tokens=9), effort))
    return "".join(delta.reasoning for delta in deltas), "".join(delta.text for delta in deltas)


def test_reasoning_and_text_of_a_stream_are_returned(seen: list[httpx.Request]) -> None:
    assert ask(RemoteModel("http://127.0.0.1:1", "nano", "qs-1"), "low") == ("hm. ", "Hello")
    assert ask(RemoteModel("http://127.0.0.1:1/v1/", "nano")) == ("hm. ", "Hello")
    assert [str(request.url) for request in seen] == ["http://127.0.0.1:1/v1/chat/completions"] * 2
    assert seen[0].headers["authorization"] == "Bearer qs-1"
    body = json.loads(seen[0].content)
    assert (body["max_tokens"], body["reasoning_effort"], body["messages"][0]["content"]) == (9, "low", "Hi")
    assert "reasoning_effort" not in json.loads(seen[1].content)


@pytest.mark.parametrize(("model", "message"), [("none", "model `none` not found"), ("fails", "the engine died")])
def test_errors_of_the_server_are_shown(seen: list[httpx.Request], model: str, message: str) -> None:
    with pytest.raises(QuicksilverError, match=message):
        ask(RemoteModel("http://127.0.0.1:1", model))


def test_an_address_without_a_server_is_named() -> None:
    with pytest.raises(QuicksilverError, match=r"127\.0\.0\.1:9 does not answer"):
        ask(RemoteModel("http://127.0.0.1:9", "nano"))


def test_reasoning_is_shown_and_kept_out_of_the_conversation(
    seen: list[httpx.Request], capsys: pytest.CaptureFixture[str]
) -> None:
    answer_to = chat.remote_answers(RemoteModel("http://127.0.0.1:1", "nano"), DecodeParams(), None)
    assert answer_to([Message("user", "Hi")]) == "Hello"
    assert "hm. Hello" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "sent"),
    [
        ((), None),
        (("--decoder", "ar"), {"name": "ar"}),
        (("--canvas-len", "4"), {"canvas_len": 4}),
    ],
)
def test_only_a_decoder_that_was_chosen_is_sent(
    seen: list[httpx.Request], flags: tuple[str, ...], sent: dict[str, object] | None
) -> None:
    done = CliRunner().invoke(app, ["chat", "--url", "http://127.0.0.1:1", *flags], input="Hi\n")
    assert done.exit_code == 0, done.output
    assert json.loads(seen[0].content).get("decoder") == sent
