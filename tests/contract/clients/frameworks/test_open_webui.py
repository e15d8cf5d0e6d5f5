"""The calls of Open WebUI, replayed: the model list, a chat, a tool call, a title and tags, and a stop."""

from __future__ import annotations

import json
from typing import Any

import httpx
from conftest import Server
from questions import ASK_WEATHER, CITY, LIMIT, STORY, STORY_TOKENS, WEATHER, check_call, user

HEADERS = {"Authorization": "Bearer none", "Content-Type": "application/json", "X-OpenWebUI-User-Name": "Ada"}


def read(lines: Any) -> str:
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def test_models(server: Server) -> None:
    listed = httpx.get(f"{server.v1}/models", headers=HEADERS).json()
    assert {"id", "object"} <= set(listed["data"][0])
    assert "nano" in {model["id"] for model in listed["data"]}


def test_chat(server: Server) -> None:
    body = {"model": "nano", "messages": user(), "stream": True, "temperature": 0, "max_tokens": LIMIT}
    with httpx.stream("POST", f"{server.v1}/chat/completions", json=body, headers=HEADERS, timeout=60) as reply:
        assert CITY in read(reply.iter_lines())


def test_tools(server: Server) -> None:
    """Native function calling: deltas of calls are joined by their index, then the result is sent back."""
    body = {"model": "nano", "messages": user(ASK_WEATHER), "tools": [WEATHER], "tool_choice": "required"}
    fields = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0, "max_tokens": LIMIT}
    calls: dict[int, dict[str, str]] = {}
    url = f"{server.v1}/chat/completions"
    with httpx.stream("POST", url, json={**body, **fields}, headers=HEADERS, timeout=60) as reply:
        for line in reply.iter_lines():
            chunk = json.loads(line[6:]) if line.startswith("data: {") else {"choices": []}
            for delta in (call for choice in chunk["choices"] for call in choice["delta"].get("tool_calls") or ()):
                call = calls.setdefault(delta["index"], {"id": "", "name": "", "arguments": ""})
                call["id"] += delta.get("id") or ""
                call["name"] += delta["function"].get("name") or ""
                call["arguments"] += delta["function"].get("arguments") or ""
    check_call(calls[0]["name"], calls[0]["arguments"])
    function = {"name": calls[0]["name"], "arguments": calls[0]["arguments"]}
    asked = {"role": "assistant", "content": "", "tool_calls": [{"id": calls[0]["id"], "function": function}]}
    asked["tool_calls"][0] |= {"type": "function", "index": 0}
    result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "sunny"}
    body = {"model": "nano", "messages": [*user(ASK_WEATHER), asked, result], "max_tokens": 16}
    assert httpx.post(url, json=body, headers=HEADERS, timeout=60).status_code == 200


def test_title_and_tags(server: Server) -> None:
    for task in ("Generate a concise title", "Generate 1-3 broad tags"):
        text = f"### Task:\n{task} for the chat history, as JSON.\n<chat_history>\nUSER: Hi\n</chat_history>"
        body = {"model": "nano", "messages": user(text), "stream": False, "max_completion_tokens": 16}
        reply = httpx.post(f"{server.v1}/chat/completions", json=body, headers=HEADERS, timeout=60)
        assert reply.status_code == 200
        assert isinstance(reply.json()["choices"][0]["message"]["content"], str)


def test_refusal(server: Server) -> None:
    body = {"model": "gpt-9", "messages": user()}
    refused = httpx.post(f"{server.v1}/chat/completions", json=body, headers=HEADERS)
    assert refused.status_code == 404
    assert refused.json()["error"]["message"]


def test_abort(server: Server) -> None:
    body = {"model": "nano", "messages": user(STORY), "stream": True, "temperature": 0, "max_tokens": STORY_TOKENS}
    url = f"{server.v1}/chat/completions"
    with server.expecting_an_abort(), httpx.stream("POST", url, json=body, headers=HEADERS, timeout=60) as reply:
        next(reply.iter_lines())
        reply.close()
