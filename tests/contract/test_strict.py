"""Strict schemas through the `parse` helpers of the `openai` client."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from pydantic import BaseModel

from tests.contract.live import LiveServer
from tests.contract.strict_examples import EXAMPLES, Query

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def client(live: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
        yield client


def ask(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("wanted", EXAMPLES, ids=lambda model: model.__name__)
def test_a_chat_answer_is_parsed(client: openai.OpenAI, wanted: type[BaseModel]) -> None:
    reply = client.chat.completions.parse(model="mercury-2", messages=ask(EXAMPLES[wanted]), response_format=wanted)
    assert isinstance(reply.choices[0].message.parsed, wanted)


@pytest.mark.parametrize("wanted", EXAMPLES, ids=lambda model: model.__name__)
def test_a_streamed_chat_answer_is_parsed(client: openai.OpenAI, wanted: type[BaseModel]) -> None:
    messages = ask(EXAMPLES[wanted])
    with client.chat.completions.stream(model="mercury-2", messages=messages, response_format=wanted) as stream:
        kinds = {event.type for event in stream}
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, wanted)
    assert "content.done" in kinds


@pytest.mark.parametrize("wanted", EXAMPLES, ids=lambda model: model.__name__)
def test_a_response_is_parsed(client: openai.OpenAI, wanted: type[BaseModel]) -> None:
    reply = client.responses.parse(model="mercury-2", input=EXAMPLES[wanted], text_format=wanted)
    assert isinstance(reply.output_parsed, wanted)


def test_the_arguments_of_a_tool_are_parsed(client: openai.OpenAI) -> None:
    tool = openai.pydantic_function_tool(Query, name="query")
    reply = client.chat.completions.parse(
        model="mercury-2", messages=ask("query the orders"), tools=[tool], tool_choice="required"
    )
    calls = reply.choices[0].message.tool_calls
    assert calls
    assert isinstance(calls[0].function.parsed_arguments, Query)


def test_the_arguments_of_a_tool_are_parsed_from_a_response(client: openai.OpenAI) -> None:
    tool = {**openai.pydantic_function_tool(Query, name="query")["function"], "type": "function"}
    reply = client.responses.parse(model="mercury-2", input="query the orders", tools=[tool], tool_choice="required")
    call = reply.output[0]
    assert call.type == "function_call"
    assert Query.model_validate_json(call.arguments)
