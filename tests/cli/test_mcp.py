"""`quicksilver mcp`: every tool is one request to the server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters, stdio_client

from quicksilver.cli.mcp import ServerClient, build_server, unfenced

ARGUMENTS: dict[str, dict[str, Any]] = {
    "complete_code": {"prefix": "a = ", "suffix": "\nprint(a)"},
    "next_edit": {"path": "a.py", "before": "import os\n", "region": "a = 1", "after": "\n"},
    "apply_edit": {"original": "a = 1", "update": "a = 2"},
    "decide": {"text": "It rains.", "question": "Is it wet?", "choices": ["yes", "no"]},
    "extract_json": {"text": "Ada, 36", "json_schema": {"type": "object"}},
    "summarise": {"text": "A long story.", "max_words": 10},
}
Answer = Callable[[httpx.Request], httpx.Response]


def completion(content: str) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content}, "text": content}]}


def make_server(answer: Answer, **fields: str) -> Any:
    settings = {"url": "http://server/v1/", "key": "qs-1", "model": "nano", **fields}
    return build_server(ServerClient(**settings, transport=httpx.MockTransport(answer)))


async def call(server: Any, tool: str) -> Any:
    async with Client(server) as client:
        return await client.call_tool(tool, ARGUMENTS[tool])


async def test_every_tool_is_listed_with_a_description() -> None:
    async with Client(make_server(lambda request: httpx.Response(200))) as client:
        listed = (await client.list_tools()).tools
    assert [tool.name for tool in listed] == list(ARGUMENTS)
    assert all(tool.description for tool in listed)


@pytest.mark.parametrize(
    ("tool", "path", "reply", "result"),
    [
        ("complete_code", "/v1/fim/completions", completion("1"), "1"),
        ("next_edit", "/v1/edit/completions", completion("```\na = 2\n```"), "a = 2"),
        ("apply_edit", "/v1/apply/completions", completion("a = 2"), "a = 2"),
        ("extract_json", "/v1/chat/completions", completion("{}"), "{}"),
        ("summarise", "/v1/chat/completions", completion("Short."), "Short."),
    ],
)
async def test_a_tool_sends_its_request(tool: str, path: str, reply: dict[str, Any], result: str) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=reply)

    found = await call(make_server(answer), tool)
    assert found.content[0].text == result
    (request,) = seen
    assert (request.url.path, request.headers["authorization"]) == (path, "Bearer qs-1")
    body = json.loads(request.content)
    assert body["model"] == "nano"
    assert all(text in request.content.decode() for text in ("a = ",) if tool in ("complete_code", "apply_edit"))


async def test_decide_returns_probabilities() -> None:
    options = [{"value": "yes", "probability": 0.9}, {"value": "no", "probability": 0.1}]
    reply = {"answers": [{"type": "choice", "choice": "yes", "probabilities": options}]}
    found = await call(make_server(lambda request: httpx.Response(200, json=reply)), "decide")
    assert json.loads(found.content[0].text) == {"yes": 0.9, "no": 0.1}


async def test_the_message_of_the_server_reaches_the_agent() -> None:
    refusal = {"error": {"message": "model `x` not found"}}
    found = await call(make_server(lambda request: httpx.Response(404, json=refusal), key="", model=""), "summarise")
    assert found.is_error
    assert "model `x` not found" in found.content[0].text

    def unreachable(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    assert "cannot be reached" in (await call(make_server(unreachable), "summarise")).content[0].text


def test_only_a_fenced_reply_is_unfenced() -> None:
    assert unfenced("```\na\n\nb\n```\n") == "a\n\nb"
    assert unfenced("a") == "a"


@pytest.mark.timeout(120)
async def test_the_command_uses_standard_input_and_output() -> None:
    program = "from quicksilver.cli import main; main(['mcp', '--url', 'http://127.0.0.1:9'])"
    command = StdioServerParameters(command=sys.executable, args=["-c", program], env=dict(os.environ))
    async with Client(stdio_client(command)) as client:
        assert len((await client.list_tools()).tools) == len(ARGUMENTS)
        assert (await client.call_tool("summarise", ARGUMENTS["summarise"])).is_error
