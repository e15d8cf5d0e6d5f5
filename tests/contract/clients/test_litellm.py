"""LiteLLM, through its `inception/` provider and through `openai/`."""

from __future__ import annotations

from typing import Any

import litellm
import pytest
from conftest import ANSWER, QUESTION

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(params=["inception/mercury-2", "openai/mercury-2"])
def fields(request: pytest.FixtureRequest, url: str) -> dict[str, Any]:
    return {"model": request.param, "api_base": f"{url}/v1", "api_key": "none", "num_retries": 0}


def ask(text: str = QUESTION) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_chat(fields: dict[str, Any]) -> None:
    reply = litellm.completion(messages=ask(), reasoning_effort="low", **fields)
    assert reply.choices[0].message.content == ANSWER
    assert reply.choices[0].message.reasoning_content == "Let me think."
    assert reply.usage.completion_tokens_details.reasoning_tokens > 0


def test_stream(fields: dict[str, Any]) -> None:
    chunks = list(litellm.completion(messages=ask(), stream=True, stream_options={"include_usage": True}, **fields))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    assert chunks[-1].usage.completion_tokens == len(ANSWER)


def test_tools(fields: dict[str, Any]) -> None:
    reply = litellm.completion(messages=ask("weather in Paris?"), tools=[TOOL], tool_choice="required", **fields)
    assert reply.choices[0].message.tool_calls[0].function.name == "weather"


def test_schema(fields: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    reply = litellm.completion(messages=ask(), response_format=wanted, **fields)
    assert reply.choices[0].message.content == '{"name": "Ada"}'


def test_refusal(fields: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(messages=ask(), temperature=5, **fields)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=ask(), **{**fields, "model": fields["model"] + "2"})


def test_abort(fields: dict[str, Any]) -> None:
    stream = litellm.completion(messages=ask("a long poem"), stream=True, **fields)
    next(iter(stream))
    assert litellm.completion(messages=ask(), **fields).choices[0].message.content == ANSWER


def test_fill_in_the_middle(url: str) -> None:
    reply = litellm.text_completion(
        model="text-completion-inception/mercury-edit-2",
        prompt="def f(",
        suffix=")",
        api_base=f"{url}/v1/fim",
        api_key="none",
    )
    assert reply.choices[0].text == ANSWER
