"""LiteLLM, through its `inception/` provider and through `openai/`."""

from __future__ import annotations

import asyncio
from typing import Any

import litellm
import pytest
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


@pytest.fixture(params=["inception/mercury-2", "openai/mercury-2"])
def fields(request: pytest.FixtureRequest, server: Server) -> dict[str, Any]:
    address = {"api_base": server.v1, "api_key": "none", "num_retries": 0}
    return {"model": request.param, **address, "temperature": 0, "max_tokens": LIMIT}


def test_chat(fields: dict[str, Any]) -> None:
    reply = litellm.completion(messages=user(), **fields)
    assert CITY in reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "stop"


def test_reasoning(fields: dict[str, Any]) -> None:
    reply = litellm.completion(messages=user(), reasoning_effort="low", **fields)
    assert reply.choices[0].message.content or reply.choices[0].finish_reason == "length"
    assert reply.choices[0].message.reasoning_content
    assert reply.usage.completion_tokens_details.reasoning_tokens > 0


def test_stream(fields: dict[str, Any]) -> None:
    chunks = list(litellm.completion(messages=user(), stream=True, stream_options={"include_usage": True}, **fields))
    assert CITY in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage.completion_tokens > 0


def test_tools(fields: dict[str, Any]) -> None:
    reply = litellm.completion(messages=user(ASK_WEATHER), tools=[WEATHER], tool_choice="required", **fields)
    call = reply.choices[0].message.tool_calls[0]
    check_call(call.function.name, call.function.arguments)


def test_schema(fields: dict[str, Any]) -> None:
    reply = litellm.completion(messages=user(DESCRIBE), response_format=FORMAT, **fields)
    check_person(reply.choices[0].message.content)


def test_refusal(fields: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(messages=user(), **{**fields, "temperature": 5})
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=user(), **{**fields, "model": fields["model"] + "2"})


def test_abort(fields: dict[str, Any], server: Server) -> None:
    async def read_one() -> None:
        longer = {**fields, "max_tokens": STORY_TOKENS, "temperature": 0}
        stream = await litellm.acompletion(messages=user(STORY), stream=True, **longer)
        await anext(aiter(stream))
        await stream.aclose()

    with server.expecting_an_abort():
        asyncio.run(read_one())


def test_fill_in_the_middle(server: Server) -> None:
    reply = litellm.text_completion(
        model="text-completion-inception/mercury-edit-2",
        prompt="def add(a, b):\n    return ",
        suffix="\n",
        max_tokens=16,
        api_base=f"{server.v1}/fim",
        api_key="none",
    )
    assert reply.choices[0].text
