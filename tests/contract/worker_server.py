"""The whole server in this process with a real worker process and tiny random weights."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from quicksilver.accounts.service import Accounts
from quicksilver.constrain.compile.pool import CompilePool
from quicksilver.core import EngineStats
from quicksilver.server.app import build_app
from quicksilver.server.config import ServerConfig
from quicksilver.server.run import make_listener
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from quicksilver.worker.client import RemoteEngine
from quicksilver.worker.process import StartProcess, WorkerProcess
from tests.support.small_tokenizer import VOCAB_SIZE, small_tokenizer

COMMAND = [sys.executable, "-m", "tests.worker.worker_program", "--vocab-size", str(VOCAB_SIZE)]


@dataclass(frozen=True)
class WorkerServer:
    port: int
    engine: RemoteEngine
    services: Services

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def rest(self) -> EngineStats:
        """Engine statistics once the engine is idle."""
        async with asyncio.timeout(30):
            while (stats := await self.engine.stats()).running or stats.waiting or self.services.open_requests.num_open:
                await asyncio.sleep(0.01)
        return stats


@asynccontextmanager
async def worker_server(
    home: Path,
    start_process: StartProcess = WorkerProcess.start,
    accounts: Accounts | None = None,
    grammars: CompilePool | None = None,
) -> AsyncIterator[WorkerServer]:
    tokenizer = small_tokenizer()
    engine = await RemoteEngine(COMMAND, start_process=start_process).start()
    config = ServerConfig(home=home, frames_per_s=1e9)
    services = Services(engine, tokenizer, ChatTemplate.own(tokenizer), grammars, accounts, config)
    listener = make_listener(build_app(services), "127.0.0.1", 0, config)
    serving = asyncio.create_task(listener.serve())
    try:
        while not listener.started:
            await asyncio.sleep(0.01)
        yield WorkerServer(listener.servers[0].sockets[0].getsockname()[1], engine, services)
    finally:
        listener.should_exit = True
        await serving
        await engine.close()
