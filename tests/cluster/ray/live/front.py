"""The server in front of an engine client. `python -m tests.cluster.ray.live.front ADDRESS MODEL HOME DATABASE_URL` is
an API process of a running cluster, which prints its port.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.service import Accounts
from quicksilver.cluster.ray import deploy
from quicksilver.cluster.ray.config import ClusterConfig
from quicksilver.core import EngineClient
from quicksilver.server.app import build_app
from quicksilver.server.config import ServerConfig
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from tests.support.small_tokenizer import small_tokenizer
from tests.support.sockets import listening, port_of


class Front:
    """The server of an API process. `rebuild` is for `Bank`."""

    def __init__(self, engine: EngineClient, home: Path) -> None:
        self._engine = engine
        self.rebuild(ServerConfig(home=home))

    def rebuild(self, config: ServerConfig, accounts: Accounts | None = None) -> None:
        tokenizer = small_tokenizer()
        template = ChatTemplate.own(tokenizer)
        self.services = Services(self._engine, tokenizer, template, accounts=accounts, config=config)
        self.app = build_app(self.services)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        async with listening(self.app, self.services.config) as listener, client_of(port_of(listener)) as client:
            yield client


def client_of(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=300, limits=httpx.Limits())


async def open_accounts(url: str, home: Path) -> Accounts:
    return await Accounts.open(url, AccountsConfig(pepper_path=home / "pepper"))


@asynccontextmanager
async def api_process(address: str, model: str, home: Path, url: str) -> AsyncIterator[tuple[int, httpx.AsyncClient]]:
    """The id of an API process of its own, and a client of it."""
    command = (sys.executable, "-m", "tests.cluster.ray.live.front", address, model, str(home), url)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with client_of(int(await process.stdout.readline())) as client:
            yield process.pid, client
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def serve(address: str, model: str, home: Path, url: str) -> None:
    deploy.connect(ClusterConfig((), address))
    front, accounts = Front(await deploy.open_engine(model).start(), home), await open_accounts(url, home)
    front.rebuild(front.services.config, accounts)
    async with listening(front.app, front.services.config) as listener:
        os.write(1, f"{port_of(listener)}\n".encode())
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
