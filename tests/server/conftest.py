"""A server around a scripted engine, called in process: no socket, no model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import pytest
from fastapi import FastAPI

from quicksilver.accounts.service import Accounts
from quicksilver.core import Request
from quicksilver.server.app import build_app
from quicksilver.server.config import ServerConfig
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from tests.support.bank import Bank
from tests.support.direct_grammars import DirectGrammars
from tests.support.fake_engine import FakeEngine, Script, Step, spoken
from tests.support.small_tokenizer import small_tokenizer

if TYPE_CHECKING:
    # OpenTelemetry, which few tests need.
    from quicksilver.server.http.tracing import Tracing
    from tests.support.trace_collector import TraceCollector

HELLO = "Hello, wörld! 你好 👋"


def says(text: str, piece_len: int = 4) -> Script:
    """A script that answers every request with the same text; `<think>` and the like become their tokens."""

    def script(request: Request) -> list[Step]:
        return spoken(request, small_tokenizer().encode_markup(text), piece_len)

    return script


@cache
def shared_app() -> FastAPI:
    """One app for all tests: building one takes longer than most tests, and its Services are its only state."""
    tokenizer = small_tokenizer()
    return build_app(Services(FakeEngine(says("")), tokenizer, ChatTemplate.own(tokenizer)))


class Served:
    """An app, its engine, and a client for it."""

    def __init__(self, home: Path) -> None:
        self.engine = FakeEngine(says(HELLO))
        self.grammars = DirectGrammars()
        self.rebuild(ServerConfig(home=home, frames_per_s=1e9))

    def rebuild(self, config: ServerConfig, accounts: Accounts | None = None) -> None:
        tokenizer = small_tokenizer()
        template = ChatTemplate.own(tokenizer)
        self.services = Services(
            self.engine, tokenizer, template, grammars=self.grammars, accounts=accounts, config=config
        )
        self.app = build_app(self.services) if config.origins else shared_app()
        self.app.state.services = self.services

    def configure(self, **changes: object) -> None:
        self.rebuild(replace(self.services.config, **changes), self.services.accounts)  # type: ignore[arg-type]

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(app=self.app), base_url="http://localhost")

    async def post(self, path: str, body: object, headers: dict[str, str] | None = None) -> httpx.Response:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.client() as client:
            return await client.post(path, content=raw, headers=headers)

    async def get(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        async with self.client() as client:
            return await client.get(path, headers=headers)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    assert served.engine.num_open == 0, "a slot was not given back"


@pytest.fixture
async def bank(served: Served, tmp_path: Path) -> AsyncIterator[Bank]:
    accounts = await Accounts.open(f"sqlite:///{tmp_path}/books.db")
    yield Bank(accounts, served)
    await accounts.close()


@pytest.fixture
def collector() -> Iterator[TraceCollector]:
    from tests.support.trace_collector import TraceCollector

    with TraceCollector() as collector:
        yield collector


@pytest.fixture
async def tracing(served: Served, collector: TraceCollector) -> AsyncIterator[Tracing]:
    """Traces of `served` go to the collector. A test closes this before it reads them."""
    from quicksilver.server.http.tracing import Tracing

    tracing = Tracing.to_collector(collector.endpoint)
    served.services = served.app.state.services = replace(served.services, tracing=tracing)
    yield tracing
    await tracing.close()


def chat(text: str = "Hi", **fields: object) -> dict[str, object]:
    return {"model": "mercury-2", "messages": [{"role": "user", "content": text}], **fields}


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The data of every event of a stream; the last line must be [DONE]."""
    lines = [line[6:] for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", lines[-1]
    return [orjson.loads(line) for line in lines[:-1]]


def content_of(chunks: list[dict[str, Any]]) -> str:
    """The content a client that appends would hold."""
    return "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
