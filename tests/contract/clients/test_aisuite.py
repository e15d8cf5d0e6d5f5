"""aisuite, through its openai provider."""

from __future__ import annotations

import aisuite
import pytest
from aisuite.provider import LLMError
from conftest import Server
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

MODEL = "openai:mercury-2"


@pytest.fixture(scope="module")
def client(server: Server) -> aisuite.Client:
    return aisuite.Client({"openai": {"base_url": server.v1, "api_key": "none", "max_retries": 0}})


def test_chat(client: aisuite.Client) -> None:
    reply = client.chat.completions.create(MODEL, messages=user(), temperature=0, max_tokens=LIMIT)
    assert CITY in reply.choices[0].message.content


def test_stream(client: aisuite.Client) -> None:
    chunks = client.chat.completions.create(MODEL, messages=user(), stream=True, temperature=0, max_tokens=LIMIT)
    assert CITY in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_tools(client: aisuite.Client) -> None:
    reply = client.chat.completions.create(
        MODEL, messages=user(ASK_WEATHER), tools=[WEATHER], tool_choice="required", max_tokens=LIMIT
    )
    call = reply.choices[0].message.tool_calls[0]
    check_call(call.function.name, call.function.arguments)


def test_schema(client: aisuite.Client) -> None:
    reply = client.chat.completions.create(MODEL, messages=user(DESCRIBE), response_format=FORMAT, max_tokens=LIMIT)
    check_person(reply.choices[0].message.content)


def test_refusal(client: aisuite.Client) -> None:
    with pytest.raises(LLMError, match="temperature"):
        client.chat.completions.create(MODEL, messages=user(), temperature=9)


def test_abort(client: aisuite.Client, server: Server) -> None:
    with server.expecting_an_abort():
        stream = client.chat.completions.create(
            MODEL, messages=user(STORY), stream=True, max_tokens=STORY_TOKENS, temperature=0
        )
        next(stream)
        stream.close()
