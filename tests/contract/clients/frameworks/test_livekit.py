"""LiveKit's OpenAI plugin: chat, tools, and calls that are cancelled as soon as the user speaks."""

from __future__ import annotations

import pytest
from conftest import Server
from livekit.agents import APIStatusError, function_tool
from livekit.agents.llm import ChatContext
from livekit.agents.types import APIConnectOptions
from livekit.plugins import openai
from questions import ASK_WEATHER, CITY, LIMIT, QUESTION, STORY, STORY_TOKENS

ONCE = APIConnectOptions(max_retry=0)


def model(server: Server, name: str = "mercury-2", limit: int = LIMIT) -> openai.LLM:
    return openai.LLM(model=name, base_url=server.v1, api_key="none", temperature=0, max_completion_tokens=limit)


def asked(text: str) -> ChatContext:
    context = ChatContext.empty()
    context.add_message(role="user", content=text)
    return context


@function_tool
async def weather(city: str) -> str:
    """Current weather of a city"""
    return f"sunny in {city}"


async def test_chat(server: Server) -> None:
    text = ""
    async with model(server).chat(chat_ctx=asked(QUESTION), conn_options=ONCE) as stream:
        async for chunk in stream:
            text += (chunk.delta.content or "") if chunk.delta else ""
    assert CITY in text


async def test_tools(server: Server) -> None:
    calls = []
    chat = model(server).chat(chat_ctx=asked(ASK_WEATHER), tools=[weather], tool_choice="required", conn_options=ONCE)
    async with chat as stream:
        async for chunk in stream:
            calls += chunk.delta.tool_calls if chunk.delta else []
    assert [call.name for call in calls[:1]] == ["weather"]


async def test_refusal(server: Server) -> None:
    async with model(server, "gpt-9").chat(chat_ctx=asked(QUESTION), conn_options=ONCE) as stream:
        with pytest.raises(APIStatusError) as caught:
            await anext(aiter(stream))
    assert caught.value.status_code == 404


async def test_abort(server: Server) -> None:
    with server.expecting_an_abort():
        chat = model(server, limit=STORY_TOKENS).chat(chat_ctx=asked(STORY), conn_options=ONCE)
        async with chat as stream:
            await anext(aiter(stream))
