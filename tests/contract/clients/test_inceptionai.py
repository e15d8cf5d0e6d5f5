"""Mercury's own client: host-only base URL, `/v1` in its paths."""

from __future__ import annotations

import pytest
from conftest import Server
from inceptionai import APIStatusError, Inception
from questions import (
    ASK_WEATHER,
    CITY,
    DESCRIBE,
    FORMAT,
    LIMIT,
    STORY,
    STORY_TOKENS,
    WEATHER,
    check_call,
    check_person,
    user,
)


@pytest.fixture(scope="module")
def client(server: Server) -> Inception:
    return Inception(base_url=server.url, api_key="none", max_retries=0)


def test_chat(client: Inception) -> None:
    reply = client.chat.completions.create(model="mercury-2", messages=user(), temperature=0, max_tokens=LIMIT)
    assert CITY in reply.choices[0].message.content
    assert reply.usage.cached_input_tokens <= reply.usage.prompt_tokens
    assert reply.usage.reasoning_tokens == 0


def test_stream(client: Inception) -> None:
    chunks = client.chat.completions.create(
        model="mercury-2", messages=user(), temperature=0, max_tokens=LIMIT, stream=True
    )
    assert CITY in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_diffusing_stream_replaces(client: Inception) -> None:
    chunks = client.chat.completions.create(
        model="mercury-2", messages=user(), temperature=0, max_tokens=LIMIT, stream=True, diffusing=True
    )
    shown = [text for chunk in chunks if (text := chunk.choices[0].delta.content)]
    assert CITY in shown[-1]
    assert len(shown) > 1


def test_tools(client: Inception) -> None:
    reply = client.chat.completions.create(
        model="mercury-2", messages=user(ASK_WEATHER), tools=[WEATHER], tool_choice="required", max_tokens=LIMIT
    )
    call = reply.choices[0].message.tool_calls[0]
    check_call(call.function.name, call.function.arguments)


def test_schema(client: Inception) -> None:
    reply = client.chat.completions.create(
        model="mercury-2", messages=user(DESCRIBE), response_format=FORMAT, max_tokens=LIMIT
    )
    check_person(reply.choices[0].message.content)


def test_models(client: Inception) -> None:
    assert "mercury-2" in [model.id for model in client.models.list().data]
    assert "mercury-2" in [model.id for model in client.models.list_chat().data]
    assert "mercury-edit-2" in [model.id for model in client.models.list_fim().data]
    assert "mercury-edit-2" in [model.id for model in client.models.list_edit().data]


def test_refusal(client: Inception) -> None:
    with pytest.raises(APIStatusError) as caught:
        client.chat.completions.create(model="jupyter-2", messages=user())
    assert caught.value.status_code == 404


def test_abort(client: Inception, server: Server) -> None:
    with server.expecting_an_abort():
        stream = client.chat.completions.create(
            model="mercury-2", messages=user(STORY), stream=True, max_tokens=STORY_TOKENS, temperature=0
        )
        next(iter(stream))
        stream.close()
