"""OpenAI's own Python client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import openai
import pytest
from conftest import Server
from questions import ASK_WEATHER, CITY, DESCRIBE, LIMIT, STORY, STORY_TOKENS, WEATHER, Person, check_call, user


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v1, api_key="none", max_retries=0) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="mercury-2", messages=user(), temperature=0, max_tokens=LIMIT)
    assert CITY in reply.choices[0].message.content
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="mercury-2", messages=user(), temperature=0, max_tokens=LIMIT, stream_options={"include_usage": True}
    ) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert CITY in "".join(pieces)
    assert final.choices[0].message.content == "".join(pieces)
    assert final.choices[0].message.role == "assistant"
    assert final.usage.completion_tokens > 0


def test_tools(client: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    reply = client.chat.completions.create(
        model="mercury-2", messages=user(ASK_WEATHER), tools=[WEATHER], tool_choice=named, max_tokens=LIMIT
    )
    call = reply.choices[0].message.tool_calls[0]
    check_call(call.function.name, call.function.arguments)
    assert reply.choices[0].finish_reason == "tool_calls"


def test_schema(client: openai.OpenAI) -> None:
    reply = client.chat.completions.parse(
        model="mercury-2", messages=user(DESCRIBE), response_format=Person, max_tokens=LIMIT
    )
    assert isinstance(reply.choices[0].message.parsed, Person)


def test_responses(client: openai.OpenAI) -> None:
    reply = client.responses.create(model="mercury-2", input=user(), temperature=0, max_output_tokens=LIMIT)
    assert CITY in reply.output_text
    parsed = client.responses.parse(model="mercury-2", input=DESCRIBE, text_format=Person, max_output_tokens=LIMIT)
    assert isinstance(parsed.output_parsed, Person)


def decide(client: openai.OpenAI, state: str, model: str = "nano") -> dict[str, Any]:
    """The route of typed questions, through the client's own method for other paths."""
    return client.post("/decisions", cast_to=dict[str, Any], body=question(state, model))


def question(state: str, model: str = "nano") -> dict[str, Any]:
    questions = [{"type": "predicate", "name": "sport", "instructions": "Is the text about sport?"}]
    return {"model": model, "input": state, "questions": questions}


def test_decisions(client: openai.OpenAI) -> None:
    (answer,) = decide(client, "The match ended 3:1.")["answers"]
    assert answer["name"] == "sport"
    assert 0 <= answer["probability"] <= 1
    with pytest.raises(openai.NotFoundError):
        decide(client, "The match ended 3:1.", "gpt-9")


def test_a_cancelled_decision_frees_its_pages(server: Server) -> None:
    num_free = server.figure("kv_pages_free")
    with server.expecting_an_abort():
        asyncio.run(leave_while_deciding(server))
    assert server.figure("kv_pages_free") == num_free


async def leave_while_deciding(server: Server) -> None:
    """Cancels the request while the engine computes its input of about 4,000 tokens."""
    async with openai.AsyncOpenAI(base_url=server.v1, api_key="none", max_retries=0) as client:
        body = question("The match ended 3:1. " * 500)
        asked = asyncio.create_task(client.post("/decisions", cast_to=dict[str, Any], body=body))
        while not await asyncio.to_thread(server.figure, "num_requests_running"):
            assert not asked.done()
            await asyncio.sleep(0.02)
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked


def test_refusal(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="mercury-2", messages=user(), temperature=9)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-9", messages=user())


def test_abort(client: openai.OpenAI, server: Server) -> None:
    with server.expecting_an_abort():
        stream = client.chat.completions.create(
            model="mercury-2", messages=user(STORY), stream=True, max_tokens=STORY_TOKENS, temperature=0
        )
        next(iter(stream))
        stream.close()
