"""pydantic-ai, in both of OpenAI's dialects: typed answers and tool loops."""

from __future__ import annotations

from contextlib import suppress

import pytest
from conftest import Server
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.exceptions import ModelHTTPError, UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from questions import ASK_WEATHER, CITY, DESCRIBE, LIMIT, QUESTION, STORY, STORY_TOKENS, Person

SETTINGS = ModelSettings(temperature=0, max_tokens=LIMIT)


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel])
def model(request: pytest.FixtureRequest, server: Server) -> OpenAIChatModel:
    return request.param("mercury-2", provider=OpenAIProvider(base_url=server.v1, api_key="none"), settings=SETTINGS)


async def test_chat(model: OpenAIChatModel) -> None:
    assert CITY in (await Agent(model).run(QUESTION)).output


async def test_stream(model: OpenAIChatModel) -> None:
    async with Agent(model).run_stream(QUESTION) as run:
        shown = [text async for text in run.stream_text(delta=False)]
    assert CITY in shown[-1]


async def test_schema(model: OpenAIChatModel) -> None:
    assert isinstance((await Agent(model, output_type=Person).run(DESCRIBE)).output, Person)


async def test_tools(model: OpenAIChatModel) -> None:
    agent = Agent(model)
    seen = []

    @agent.tool_plain
    def weather(city: str) -> str:
        """Current weather of a city"""
        seen.append(city)
        return "sunny, 21 degrees"

    # A model of this size may never stop calling tools.
    with suppress(UsageLimitExceeded):
        assert (await agent.run(ASK_WEATHER, usage_limits=UsageLimits(request_limit=3))).output
    assert all(isinstance(city, str) for city in seen)
    assert seen


async def test_refusal(server: Server) -> None:
    provider = OpenAIProvider(base_url=server.v1, api_key="none")
    with pytest.raises(ModelHTTPError) as caught:
        await Agent(OpenAIChatModel("gpt-9", provider=provider)).run(QUESTION)
    assert caught.value.status_code == 404


async def test_abort(model: OpenAIChatModel, server: Server) -> None:
    settings = ModelSettings(max_tokens=STORY_TOKENS, temperature=0)
    with server.expecting_an_abort():
        async with Agent(model).run_stream(STORY, model_settings=settings) as run:
            await anext(aiter(run.stream_text(delta=True)))
            await run.cancel()
