"""`quicksilver mcp`: tools for agents over the Model Context Protocol. Each tool is one request to a running server."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import httpx
import typer

from quicksilver import __version__
from quicksilver.errors import QuicksilverError

TIMEOUT = httpx.Timeout(10, read=600)
# The whole region comes back between bare fences.
FENCE = "```"


class ServerClient:
    """Requests to a server. `url` is its address with or without `/v1`."""

    def __init__(self, url: str, key: str, model: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        base = url.rstrip("/").removesuffix("/v1") + "/v1"
        self._http = httpx.AsyncClient(base_url=base, headers=headers, timeout=TIMEOUT, transport=transport)
        self._model = {"model": model} if model else {}

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Raises ToolError with the server's message, which the agent then reads."""
        from mcp.server.mcpserver.exceptions import ToolError

        try:
            reply = await self._http.post(path, json={**self._model, **body})
            parsed: dict[str, Any] = reply.json()
        except (httpx.HTTPError, json.JSONDecodeError) as error:
            raise ToolError(f"{self._http.base_url} cannot be reached: {error}") from None
        if reply.status_code >= 400:
            raise ToolError(parsed["error"]["message"])
        return parsed

    async def chat(self, text: str, max_tokens: int, **fields: Any) -> str:
        messages = [{"role": "user", "content": text}]
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, **fields}
        return str((await self.post("/chat/completions", body))["choices"][0]["message"]["content"])


class Tools:
    """The tools. Their docstrings and parameters are what an agent reads."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client

    async def complete_code(self, prefix: str, suffix: str = "", max_tokens: int = 128) -> str:
        """Write the code that belongs between a prefix and a suffix of a file."""
        body = {"prompt": prefix, "suffix": suffix, "max_tokens": max_tokens}
        return str((await self._client.post("/fim/completions", body))["choices"][0]["text"])

    async def next_edit(self, path: str, before: str, region: str, after: str, recent_diffs: str = "") -> str:
        """Predict the next edit of a file: returns the region as it should read, given the text around it and the
        unified diffs of recent edits. The region may contain <|cursor|>."""
        file = f"current_file_path: {path}\n{before}<|code_to_edit|>\n{region}\n<|/code_to_edit|>{after}"
        content = (
            "<|recently_viewed_code_snippets|>\n<|/recently_viewed_code_snippets|>\n\n"
            f"<|current_file_content|>\n{file}\n<|/current_file_content|>\n\n"
            f"<|edit_diff_history|>\n{recent_diffs}\n<|/edit_diff_history|>\n"
        )
        body = {"messages": [{"role": "user", "content": content}]}
        reply = (await self._client.post("/edit/completions", body))["choices"][0]["message"]["content"]
        return unfenced(str(reply))

    async def apply_edit(self, original: str, update: str) -> str:
        """Merge an update snippet into a file and return the whole new file. In the snippet, a comment such as
        `# ... existing code ...` stands for code that does not change."""
        content = (
            f"<|original_code|>\n{original}\n<|/original_code|>\n\n<|update_snippet|>\n{update}\n<|/update_snippet|>"
        )
        body = {"messages": [{"role": "user", "content": content}]}
        return str((await self._client.post("/apply/completions", body))["choices"][0]["message"]["content"])

    async def decide(self, text: str, question: str, choices: list[str]) -> dict[str, float]:
        """Answer a question about a text with one of the choices: returns the probability of each choice."""
        options = [{"value": choice} for choice in choices]
        asked = {"type": "choice", "instructions": question, "choices": options}
        reply = await self._client.post("/decisions", {"input": text, "questions": [asked]})
        return {each["value"]: each["probability"] for each in reply["answers"][0]["probabilities"]}

    async def extract_json(self, text: str, json_schema: dict[str, Any], max_tokens: int = 1024) -> str:
        """Extract data from a text as JSON that satisfies a JSON schema."""
        form = {"type": "json_schema", "json_schema": {"name": "data", "schema": json_schema, "strict": True}}
        return await self._client.chat(f"Extract the data as JSON.\n\n{text}", max_tokens, response_format=form)

    async def summarise(self, text: str, max_words: int = 100) -> str:
        """Summarise a text."""
        return await self._client.chat(f"Summarise this in at most {max_words} words.\n\n{text}", 4 * max_words)


def unfenced(reply: str) -> str:
    lines = reply.strip("\n").split("\n")
    return "\n".join(lines[1:-1]) if lines[0].startswith(FENCE) and lines[-1] == FENCE else reply


def build_server(client: ServerClient) -> Any:
    """The MCP server. Raises QuicksilverError if the package is not installed."""
    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError:
        raise QuicksilverError('MCP needs one more package: pip install ".[mcp]" in a checkout') from None
    tools = Tools(client)
    server = MCPServer("quicksilver", version=__version__, log_level="WARNING")
    for tool in (
        tools.complete_code,
        tools.next_edit,
        tools.apply_edit,
        tools.decide,
        tools.extract_json,
        tools.summarise,
    ):
        server.tool()(tool)
    return server


def mcp(
    url: Annotated[
        str, typer.Option(envvar="QUICKSILVER_URL", help="Address of the server.")
    ] = "http://127.0.0.1:8480",
    model: Annotated[str, typer.Option(help="Model; without it, the default of the server.")] = "",
) -> None:
    """Offer a running server to agents as tools, over MCP on standard input and output."""
    # The key comes from the environment only: arguments are visible to other users of the machine.
    build_server(ServerClient(url, os.environ.get("QUICKSILVER_API_KEY", ""), model)).run()
