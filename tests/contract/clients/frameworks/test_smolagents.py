"""smolagents: its OpenAI model class, and a tool-calling agent."""

from __future__ import annotations

import openai
import pytest
from conftest import Server
from questions import ASK_WEATHER, CITY, LIMIT, QUESTION, STORY, STORY_TOKENS
from smolagents import ChatMessage, MessageRole, OpenAIServerModel, Tool


class Weather(Tool):
    name = "weather"
    description = "Current weather of a city"
    inputs = {"city": {"type": "string", "description": "Name of the city"}}  # noqa: RUF012
    output_type = "string"

    def forward(self, city: str) -> str:
        return f"sunny in {city}"


def model(server: Server, name: str = "nano", limit: int = LIMIT) -> OpenAIServerModel:
    client = {"max_retries": 0}
    return OpenAIServerModel(
        name, api_base=server.v1, api_key="none", client_kwargs=client, temperature=0, max_tokens=limit
    )


def asked(text: str) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": text}])]


def test_chat(server: Server) -> None:
    assert CITY in model(server).generate(asked(QUESTION), stop_sequences=["Observation:"]).content


def test_tools(server: Server) -> None:
    reply = model(server).generate(asked(ASK_WEATHER), tools_to_call_from=[Weather()])
    (call, *_) = reply.tool_calls or ()
    assert call.function.name == "weather"


def test_refusal(server: Server) -> None:
    with pytest.raises(openai.NotFoundError):
        model(server, "gpt-9").generate(asked(QUESTION))


def test_abort(server: Server) -> None:
    with server.expecting_an_abort():
        stream = model(server, limit=STORY_TOKENS).generate_stream(asked(STORY))
        next(delta for delta in stream if delta.content)
        stream.close()
