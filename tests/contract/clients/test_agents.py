"""pydantic-ai, instructor and aisuite: retries on validation, tool loops, plain chat."""

from __future__ import annotations

import aisuite
import instructor
import openai
import pydantic
import pytest
from conftest import ANSWER, QUESTION
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Person(pydantic.BaseModel):
    name: str
    age: int


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel])
def model(request: pytest.FixtureRequest, url: str) -> OpenAIChatModel:
    return request.param("mercury-2", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))


async def test_pydantic_ai_answers_and_streams(model: OpenAIChatModel) -> None:
    agent = Agent(model)
    assert (await agent.run(QUESTION)).output == ANSWER
    async with agent.run_stream(QUESTION) as run:
        assert [text async for text in run.stream_text(delta=False)][-1] == ANSWER


async def test_pydantic_ai_gives_typed_output(model: OpenAIChatModel) -> None:
    agent = Agent(model, output_type=Person)
    assert (await agent.run("Who is it?")).output == Person(name="Ada", age=36)


async def test_pydantic_ai_runs_a_tool_loop(model: OpenAIChatModel) -> None:
    agent = Agent(model)
    seen = []

    @agent.tool_plain
    def weather(city: str) -> str:
        seen.append(city)
        return "tool result: sunny"

    assert (await agent.run("What is the weather in Paris?")).output == "It is sunny."
    assert seen == ["Paris"]


async def test_pydantic_ai_sees_refusals(url: str) -> None:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    with pytest.raises(ModelHTTPError) as caught:
        await Agent(OpenAIChatModel("gpt-9", provider=provider)).run(QUESTION)
    assert caught.value.status_code == 404


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA])
def test_instructor(url: str, mode: instructor.Mode) -> None:
    client = instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none"), mode=mode)
    question = [{"role": "user", "content": "Who?"}]
    person = client.chat.completions.create(model="mercury-2", response_model=Person, messages=question, max_retries=0)
    assert person.model_dump() == {"name": "Ada", "age": 36}


def test_aisuite(url: str) -> None:
    client = aisuite.Client({"openai": {"base_url": f"{url}/v1", "api_key": "none"}})
    reply = client.chat.completions.create("openai:mercury-2", messages=[{"role": "user", "content": QUESTION}])
    assert reply.choices[0].message.content == ANSWER
