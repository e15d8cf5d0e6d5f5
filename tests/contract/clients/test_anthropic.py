"""Anthropic's own Python client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from conftest import Server
from questions import ASK_WEATHER, CITY, DESCRIBE, LIMIT, SCHEMA, STORY, STORY_TOKENS, WEATHER, check_call, user

# This client has no parameter for the temperature any more.
GREEDY = {"temperature": 0}
FUNCTION = WEATHER["function"]
TOOL: dict[str, Any] = {
    "name": FUNCTION["name"],
    "description": FUNCTION["description"],
    "input_schema": FUNCTION["parameters"],
    "cache_control": {"type": "ephemeral"},
}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def test_message(client: anthropic.Anthropic) -> None:
    reply = client.messages.create(model="nano", max_tokens=LIMIT, messages=user(), extra_body=GREEDY)
    assert CITY in reply.content[0].text
    assert (reply.stop_reason, reply.role) == ("end_turn", "assistant")
    counted = client.messages.count_tokens(model="nano", messages=user())
    usage = reply.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    assert reply._request_id.startswith("req_")


def test_stream(client: anthropic.Anthropic) -> None:
    system = [{"type": "text", "text": "Answer in one sentence.", "cache_control": {"type": "ephemeral"}}]
    with client.messages.stream(
        model="nano", max_tokens=LIMIT, messages=user(), system=system, extra_body=GREEDY
    ) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert CITY in "".join(pieces)
    assert final.content[0].text == "".join(pieces)
    assert final.usage.output_tokens > 0


def test_tool_and_its_result(client: anthropic.Anthropic) -> None:
    chosen = {"type": "tool", "name": "weather"}
    with client.messages.stream(
        model="nano", max_tokens=LIMIT, messages=user(ASK_WEATHER), tools=[TOOL], tool_choice=chosen
    ) as stream:
        reply = stream.get_final_message()
    assert reply.stop_reason == "tool_use"
    (call,) = [block for block in reply.content if block.type == "tool_use"]
    check_call(call.name, json.dumps(call.input))
    result = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": [{"type": "text", "text": "Sunny, 20 degrees."}],
    }
    messages = [
        *user(ASK_WEATHER),
        {"role": "assistant", "content": reply.content},
        {"role": "user", "content": [result]},
    ]
    answer = client.messages.create(model="nano", max_tokens=LIMIT, messages=messages, tools=[TOOL], extra_body=GREEDY)
    assert answer.content


def test_thinking_comes_back(client: anthropic.Anthropic) -> None:
    thinking = {"type": "enabled", "budget_tokens": 24}
    with client.messages.stream(
        model="nano", max_tokens=LIMIT, messages=user(), thinking=thinking, extra_body=GREEDY
    ) as stream:
        reply = stream.get_final_message()
    assert reply.content[0].type == "thinking"
    assert reply.content[0].signature
    again = [*user(), {"role": "assistant", "content": reply.content}, *user("Are you sure?")]
    assert client.messages.create(model="nano", max_tokens=16, messages=again).content
    reply.content[0].thinking += "!"
    with pytest.raises(anthropic.BadRequestError, match="signature"):
        client.messages.create(model="nano", max_tokens=16, messages=again)


def test_structured_output(client: anthropic.Anthropic) -> None:
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    reply = client.messages.create(model="nano", max_tokens=LIMIT, messages=user(DESCRIBE), output_config=form)
    assert set(json.loads(reply.content[0].text)) == {"name", "age"}


def test_errors(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(model="nano", max_tokens=LIMIT, messages=user(), extra_body={"temperature": 9})
    assert refused.value.type == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude-9", max_tokens=LIMIT, messages=user())


def test_abort(client: anthropic.Anthropic, server: Server) -> None:
    with server.expecting_an_abort():
        stream = client.messages.create(
            model="nano", max_tokens=STORY_TOKENS, messages=user(STORY), stream=True, extra_body=GREEDY
        )
        for event in stream:
            if event.type == "content_block_delta":
                break
        stream.close()
