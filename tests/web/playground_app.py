"""The server with its playground around the scripted engine: as an app, or on a free port of this machine.

`python -m tests.web.playground_app HOME [accounts]` prints the address once it listens and serves until it is ended.
With accounts the address is followed by an API key that may use the server, read usage and make keys.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from quicksilver.accounts.identity import OPERATOR, Scope
from quicksilver.accounts.records import KeyDraft
from quicksilver.accounts.service import Accounts
from quicksilver.core import EngineInfo
from quicksilver.server.app import build_app
from quicksilver.server.config import ModelCard, Pricing, ServerConfig
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from tests.support.direct_grammars import DirectGrammars
from tests.support.fake_engine import INFO, FakeEngine
from tests.web.stage import perform, stage_tokenizer

SCOPES = frozenset({Scope.INFERENCE, Scope.USAGE, Scope.KEYS})


def playground_app(home: Path, accounts: Accounts | None = None) -> FastAPI:
    tokenizer = stage_tokenizer()
    card = ModelCard(pricing=Pricing(prompt="0.00000025", completion="0.000001", input_cache_reads="0.000000025"))
    config = ServerConfig(home=home, card=card)
    engine = FakeEngine(perform, info=roomy())
    template = ChatTemplate.own(tokenizer)
    return build_app(Services(engine, tokenizer, template, DirectGrammars(), accounts, config))


def roomy() -> EngineInfo:
    """A context length that fits a long answer."""
    return EngineInfo(**{name: getattr(INFO, name) for name in INFO.__slots__} | {"context_len": 16384})


async def serve(home: Path, *, has_accounts: bool) -> None:
    accounts = await Accounts.open(f"sqlite:///{home}/books.db") if has_accounts else None
    try:
        key = await accounts.admin(first_key) if accounts else ""
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(playground_app(home, accounts), log_config=None, access_log=False, lifespan="off")
        print(f"http://127.0.0.1:{listener.getsockname()[1]} {key}", flush=True)
        await uvicorn.Server(config).serve(sockets=[listener])
    finally:
        if accounts is not None:
            await accounts.close()


def first_key(admin: Any) -> str:
    org = admin.organizations.create_org(OPERATOR, "acme", 1_000_000)
    project = admin.organizations.create_project(OPERATOR, org.id, "demo")
    return str(admin.keys.create_key(OPERATOR, KeyDraft("first", project.id, scopes=SCOPES)).secret)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), has_accounts="accounts" in sys.argv[2:]))
