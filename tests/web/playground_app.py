"""The server with its playground around the scripted engine: as an app, or on a free port of this machine.

`python -m tests.web.playground_app HOME` prints the address once it listens, and serves until it is ended.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from quicksilver.core import EngineInfo
from quicksilver.server.app import build_app
from quicksilver.server.config import ModelCard, Pricing, ServerConfig
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from tests.direct_grammars import DirectGrammars
from tests.fake_engine import INFO, FakeEngine
from tests.web.stage import perform, stage_tokenizer


def playground_app(home: Path) -> FastAPI:
    tokenizer = stage_tokenizer()
    card = ModelCard(pricing=Pricing(prompt="0.00000025", completion="0.000001", input_cache_reads="0.000000025"))
    config = ServerConfig(home=home, card=card)
    engine = FakeEngine(perform, info=roomy())
    template = ChatTemplate.own(tokenizer)
    return build_app(Services(engine, tokenizer, template, grammars=DirectGrammars(), config=config))


def roomy() -> EngineInfo:
    """Context for a long answer."""
    return EngineInfo(**{name: getattr(INFO, name) for name in INFO.__slots__} | {"context_len": 16384})


async def serve(home: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(playground_app(home), log_config=None, access_log=False, lifespan="off")
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
