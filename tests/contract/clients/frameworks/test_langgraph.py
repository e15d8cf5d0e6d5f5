"""LangGraph: an agent with a tool loop around langchain-openai's chat model."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from conftest import Server
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from questions import ASK_WEATHER, CITY, LIMIT, QUESTION, STORY, STORY_TOKENS

SEEN: list[str] = []


@tool
def weather(city: str) -> str:
    """Current weather of a city"""
    SEEN.append(city)
    return "sunny, 21 degrees"


def chat_model(server: Server, **fields: Any) -> ChatOpenAI:
    address = {"base_url": server.v1, "api_key": "none", "max_retries": 0}
    return ChatOpenAI(**{"model": "nano", **address, "temperature": 0, "max_tokens": LIMIT, **fields})


def build_graph(model: Any, tools: list[Any] | None = None) -> Any:
    async def ask_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", ask_model)
    graph.add_edge(START, "model")
    if tools:
        graph.add_node("tools", ToolNode(tools))
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
    else:
        graph.add_edge("model", END)
    return graph.compile()


async def test_chat(server: Server) -> None:
    state = await build_graph(chat_model(server)).ainvoke({"messages": [("user", QUESTION)]})
    assert CITY in state["messages"][-1].content


async def test_tools(server: Server) -> None:
    model = chat_model(server).bind_tools([weather], tool_choice="required")
    SEEN.clear()
    with pytest.raises(GraphRecursionError):
        # A required call is required in every turn.
        await build_graph(model, [weather]).ainvoke({"messages": [("user", ASK_WEATHER)]}, {"recursion_limit": 3})
    assert SEEN


async def test_refusal(server: Server) -> None:
    with pytest.raises(openai.NotFoundError):
        await build_graph(chat_model(server, model="gpt-9")).ainvoke({"messages": [("user", QUESTION)]})


async def test_abort(server: Server) -> None:
    graph = build_graph(chat_model(server, max_tokens=STORY_TOKENS, streaming=True))
    with server.expecting_an_abort():
        stream = graph.astream({"messages": [("user", STORY)]}, stream_mode="messages")
        await anext(stream)
        await stream.aclose()
