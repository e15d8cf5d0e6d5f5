"""A chat with a running server: reasoning and text of one answer, as the server streams them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx

from quicksilver.core import DecodeParams
from quicksilver.errors import QuicksilverError
from quicksilver.text.conversation import Message


class RemoteDelta(NamedTuple):
    """New reasoning and new text of an answer."""

    reasoning: str
    text: str


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model on a server with OpenAI's API. `url` is the address with or without `/v1`. Of the decoder, only fields in
    `decoder` are sent; the server chooses the others."""

    url: str
    model: str
    key: str = ""
    decoder: Mapping[str, Any] = field(default_factory=dict)

    def answer(self, turns: Sequence[Message], params: DecodeParams, effort: str | None) -> Iterator[RemoteDelta]:
        """Reasoning and text of the answer, in pieces. Closing the iterator aborts the request."""
        body = self._body(turns, params, effort)
        try:
            with (
                httpx.Client(
                    base_url=self._base(), headers=self._headers(), timeout=httpx.Timeout(10, read=600)
                ) as client,
                client.stream("POST", "/chat/completions", json=body) as reply,
            ):
                if reply.status_code != 200:
                    reply.read()
                    raise QuicksilverError(f"{self.url}: {_message(reply)}")
                for line in reply.iter_lines():
                    yield from _deltas(line)
        except httpx.HTTPError as error:
            raise QuicksilverError(f"{self.url} does not answer: {error}; is a server running there?") from error

    def _base(self) -> str:
        url = self.url.rstrip("/")
        return url if url.endswith("/v1") else f"{url}/v1"

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    def _body(self, turns: Sequence[Message], params: DecodeParams, effort: str | None) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "stream": True,
            "messages": [{"role": turn.role, "content": turn.content} for turn in turns],
            "max_tokens": params.max_new_tokens,
            "temperature": params.temperature,
            "seed": params.seed,
        }
        if self.decoder:
            body["decoder"] = dict(self.decoder)
        if effort:
            body["reasoning_effort"] = effort
        return body


def _deltas(line: str) -> Iterator[RemoteDelta]:
    """The new reasoning and text of one line of an event stream."""
    data = line.removeprefix("data: ")
    if data == line or data == "[DONE]":
        return
    chunk = json.loads(data)
    if "error" in chunk:
        raise QuicksilverError(chunk["error"]["message"])
    for choice in chunk["choices"]:
        delta = choice["delta"]
        yield RemoteDelta(delta.get("reasoning_content") or "", delta.get("content") or "")


def _message(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {reply.status_code}"
