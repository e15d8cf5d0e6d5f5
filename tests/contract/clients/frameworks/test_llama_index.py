"""LlamaIndex: its class for servers with OpenAI's API."""

from __future__ import annotations

import openai
import pytest
from conftest import Server
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from questions import ASK_WEATHER, CITY, LIMIT, QUESTION, STORY, STORY_TOKENS


def model(server: Server, name: str = "nano", limit: int = LIMIT) -> OpenAILike:
    kind = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 8192}
    return OpenAILike(
        model=name, api_base=server.v1, api_key="none", max_retries=0, temperature=0, max_tokens=limit, **kind
    )


def test_chat(server: Server) -> None:
    assert CITY in str(model(server).chat([ChatMessage(role="user", content=QUESTION)]).message.content)


def test_stream(server: Server) -> None:
    parts = [part.delta for part in model(server).stream_chat([ChatMessage(role="user", content=QUESTION)])]
    assert CITY in "".join(part or "" for part in parts)


def test_tools(server: Server) -> None:
    def weather(city: str) -> str:
        """Current weather of a city"""
        return f"sunny in {city}"

    llm, tool = model(server), FunctionTool.from_defaults(weather)
    reply = llm.chat_with_tools([tool], user_msg=ASK_WEATHER, tool_required=True)
    (call, *_) = llm.get_tool_calls_from_response(reply)
    assert call.tool_name == "weather"
    assert isinstance(call.tool_kwargs["city"], str)


def test_refusal(server: Server) -> None:
    with pytest.raises(openai.NotFoundError):
        model(server, "gpt-9").complete(QUESTION)


def test_abort(server: Server) -> None:
    with server.expecting_an_abort():
        stream = model(server, limit=STORY_TOKENS).stream_chat([ChatMessage(role="user", content=STORY)])
        next(stream)
        stream.close()
