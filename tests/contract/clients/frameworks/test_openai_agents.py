"""The OpenAI Agents SDK, over chat completions and over responses."""

from __future__ import annotations

from contextlib import suppress

import pytest
from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from conftest import Server
from openai import AsyncOpenAI, NotFoundError
from questions import ASK_WEATHER, CITY, LIMIT, QUESTION, STORY, STORY_TOKENS

set_tracing_disabled(True)
SETTINGS = ModelSettings(temperature=0, max_tokens=LIMIT)


@pytest.fixture(params=[OpenAIChatCompletionsModel, OpenAIResponsesModel])
def model(request: pytest.FixtureRequest, server: Server) -> OpenAIChatCompletionsModel:
    return request.param("nano", AsyncOpenAI(base_url=server.v1, api_key="none", max_retries=0))


async def test_chat(model: OpenAIChatCompletionsModel) -> None:
    result = await Runner.run(Agent("helper", model=model, model_settings=SETTINGS), QUESTION)
    assert CITY in result.final_output


async def test_tools(model: OpenAIChatCompletionsModel) -> None:
    seen = []

    @function_tool
    def weather(city: str) -> str:
        """Current weather of a city"""
        seen.append(city)
        return "sunny, 21 degrees"

    settings = ModelSettings(temperature=0, max_tokens=LIMIT, tool_choice="required")
    agent = Agent("helper", model=model, model_settings=settings, tools=[weather])
    # A model of this size may never stop calling tools.
    with suppress(MaxTurnsExceeded):
        await Runner.run(agent, ASK_WEATHER, max_turns=2)
    assert seen
    assert all(isinstance(city, str) for city in seen)


async def test_refusal(server: Server) -> None:
    model = OpenAIChatCompletionsModel("gpt-9", AsyncOpenAI(base_url=server.v1, api_key="none", max_retries=0))
    with pytest.raises(NotFoundError):
        await Runner.run(Agent("helper", model=model), QUESTION)


async def test_abort(model: OpenAIChatCompletionsModel, server: Server) -> None:
    settings = ModelSettings(temperature=0, max_tokens=STORY_TOKENS)
    with server.expecting_an_abort():
        result = Runner.run_streamed(Agent("helper", model=model, model_settings=settings), STORY)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and getattr(event.data, "delta", None):
                result.cancel()
