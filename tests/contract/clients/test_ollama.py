"""Ollama's Python client."""

from __future__ import annotations

import ollama
import pytest
from conftest import Server
from questions import ASK_WEATHER, CITY, DESCRIBE, LIMIT, SCHEMA, STORY, STORY_TOKENS, WEATHER, check_person, user

OPTIONS = {"temperature": 0, "num_predict": LIMIT}


@pytest.fixture
def client(server: Server) -> ollama.Client:
    return ollama.Client(host=server.url)


def test_chat(client: ollama.Client) -> None:
    reply = client.chat(model="nano", messages=user(), options=OPTIONS)
    assert CITY in (reply.message.content or "")
    assert (reply.done, reply.done_reason) == (True, "stop")
    assert reply.eval_count


def test_stream(client: ollama.Client) -> None:
    parts = list(client.chat(model="nano:latest", messages=user(), options=OPTIONS, stream=True))
    assert CITY in "".join(part.message.content or "" for part in parts)
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]


def test_generate(client: ollama.Client) -> None:
    assert client.generate(model="nano", prompt="def add(a, b):\n    return ", suffix="\n", options=OPTIONS).response


@pytest.mark.parametrize("stream", [False, True])
def test_tools(scripted: Server, stream: bool) -> None:
    client = ollama.Client(host=scripted.url)
    replied = client.chat(model="nano", messages=user(ASK_WEATHER), tools=[WEATHER], options=OPTIONS, stream=stream)
    replies = list(replied) if stream else [replied]
    calls = [call for reply in replies for call in reply.message.tool_calls or ()]
    assert calls
    for call in calls:
        assert call.function.name == "weather"
        assert isinstance(call.function.arguments["city"], str)
    result = {"role": "tool", "tool_name": "weather", "content": "sunny"}
    history = [*user(ASK_WEATHER), {"role": "assistant", "content": "", "tool_calls": calls[:1]}, result]
    assert client.chat(model="nano", messages=history, options=OPTIONS).message.content


def test_schema(client: ollama.Client) -> None:
    reply = client.chat(model="nano", messages=user(DESCRIBE), format=SCHEMA, options=OPTIONS)
    check_person(reply.message.content)


def test_lists(client: ollama.Client) -> None:
    assert "nano" in {model.model for model in client.list().models}
    assert "completion" in (client.show("nano").capabilities or ())


def test_refusal(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="not found") as caught:
        client.chat(model="llama9", messages=user())
    assert caught.value.status_code == 404


def test_abort(client: ollama.Client, server: Server) -> None:
    options = {"temperature": 0, "num_predict": STORY_TOKENS}
    with server.expecting_an_abort():
        stream = client.chat(model="nano", messages=user(STORY), options=options, stream=True)
        next(stream)
        stream.close()
