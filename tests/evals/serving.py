"""Servers on a loopback socket of this process: quicksilver with any engine, and foreign servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from starlette.responses import JSONResponse, Response

from quicksilver.accounts.service import Accounts
from quicksilver.core import EngineClient
from quicksilver.evals.served import SAMPLE
from quicksilver.server.app import build_app
from quicksilver.server.config import ModelCard, ServerConfig
from quicksilver.server.run import make_listener
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.conversation import Message
from tests.support.fakes import tiny_tokenizer

MODEL = "tiny"


@asynccontextmanager
async def serving(engine: EngineClient, home: Path, accounts: Accounts | None = None) -> AsyncIterator[str]:
    """The base URL of a quicksilver server."""
    tokenizer = tiny_tokenizer()
    config = ServerConfig(home=home, card=ModelCard(id=MODEL))
    services = Services(engine, tokenizer, ChatTemplate.own(tokenizer), accounts=accounts, config=config)
    async with listening(build_app(services), config) as url:
        yield url


@asynccontextmanager
async def listening(app: FastAPI, config: ServerConfig) -> AsyncIterator[str]:
    listener = make_listener(app, "127.0.0.1", 0, config)
    task = asyncio.create_task(listener.serve())
    try:
        while not listener.started:
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listener.servers[0].sockets[0].getsockname()[1]}/v1"
    finally:
        listener.should_exit = True
        await task


def foreign_app() -> FastAPI:
    """A server with OpenAI's dialect that accepts every model and ignores token ids."""
    app, template = FastAPI(), ChatTemplate.own(tiny_tokenizer())

    @app.get("/v1/models/{name}")
    async def model(name: str) -> Response:
        return JSONResponse({"id": name, "object": "model", "context_length": 2048})

    @app.post("/v1/tokenize")
    async def tokenize() -> Response:
        return JSONResponse({"tokens": list(template.render([Message("user", SAMPLE)]).ids)})

    @app.post("/v1/completions")
    async def completions() -> Response:
        choice = {"index": 0, "text": "x", "finish_reason": "length", "logprobs": None}
        return JSONResponse({"object": "text_completion", "choices": [choice], "system_fingerprint": "fp"})

    return app
