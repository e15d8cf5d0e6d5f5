"""The server of a long run, which can be drained and replaced, and its accounts database, which can be taken away."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.records import Limits
from quicksilver.accounts.service import Accounts
from quicksilver.constrain.compile.pool import CompilePool
from quicksilver.server.app import build_app
from quicksilver.server.config import ServerConfig
from quicksilver.server.run import Listener, make_listener
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from quicksilver.worker.client import RemoteEngine
from tests.accounts.postgres import PostgresServer, find_binaries
from tests.contract.worker_kills import WORKER
from tests.contract.worker_server import COMMAND, WorkerServer
from tests.support.small_tokenizer import small_tokenizer
from tests.worker.fork_server import fork_server

DRAIN_S = 30.0


class Replica:
    """The server around one engine. `roll` drains it and starts the next one on the same port."""

    def __init__(self, home: Path, engine: RemoteEngine, accounts: Accounts, grammars: CompilePool) -> None:
        self._make = lambda: self._services(home, accounts, grammars)
        self.engine = engine
        self.services = self._make()
        self.port = 0
        self._listener: Listener | None = None
        self._serving: asyncio.Task[None] | None = None

    def _services(self, home: Path, accounts: Accounts, grammars: CompilePool) -> Services:
        tokenizer = small_tokenizer()
        config = ServerConfig(home=home)
        return Services(self.engine, tokenizer, ChatTemplate.own(tokenizer), grammars, accounts, config)

    @property
    def server(self) -> WorkerServer:
        return WorkerServer(self.port, self.engine, self.services)

    async def start(self) -> None:
        self.services = self._make()
        listener = make_listener(build_app(self.services), "127.0.0.1", self.port, self.services.config)
        self._listener, self._serving = listener, asyncio.create_task(listener.serve())
        while not listener.started:
            await asyncio.sleep(0.01)
        self.port = listener.servers[0].sockets[0].getsockname()[1]

    async def roll(self) -> bool:
        """Whether all open replies could finish."""
        all_finished = await self.services.open_requests.drain(DRAIN_S)
        await self.stop()
        await self.start()
        return all_finished

    async def stop(self) -> None:
        assert self._listener is not None
        assert self._serving is not None
        self._listener.should_exit = True
        await self._serving


class Books:
    """The accounts database, which can be taken away for some seconds."""

    def __init__(self, home: Path) -> None:
        binaries = find_binaries()
        self.postgres = PostgresServer(binaries, "-c fsync=off") if binaries else None
        self.url = self.postgres.url if self.postgres else f"sqlite:///{home}/books.db"
        if self.postgres:
            self.postgres.start()

    async def outage(self, seconds: float) -> None:
        if self.postgres is not None:
            await asyncio.to_thread(self.postgres.kill)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(self.postgres.start)
        else:
            await asyncio.to_thread(hold_sqlite, self.url.removeprefix("sqlite:///"), seconds)

    def close(self) -> None:
        if self.postgres is not None:
            self.postgres.stop()
            self.postgres.remove()


def hold_sqlite(path: str, seconds: float) -> None:
    """Locks the database, so that no transaction can begin."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    time.sleep(seconds)
    connection.execute("ROLLBACK")
    connection.close()


@asynccontextmanager
async def soaked_server(home: Path, books: Books) -> AsyncIterator[tuple[Replica, Accounts]]:
    config = AccountsConfig(home / "pepper", key_limits=Limits(), signup_credits=10**12)
    accounts, grammars = await Accounts.open(books.url, config), CompilePool()
    await grammars.start()
    try:
        async with fork_server(*WORKER) as forks:
            engine = await RemoteEngine(COMMAND, start_process=forks.start).start()
            replica = Replica(home, engine, accounts, grammars)
            await replica.start()
            try:
                yield replica, accounts
            finally:
                await replica.stop()
                await engine.close()
    finally:
        await grammars.stop()
        await accounts.close()
