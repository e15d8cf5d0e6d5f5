"""The server in front of engine replicas on real raylets: streams over HTTP, lost nodes, accounts on PostgreSQL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.service import Accounts
from quicksilver.core import EngineClient
from quicksilver.server.app import build_app
from quicksilver.server.config import ServerConfig
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from quicksilver.worker.async_engine import AsyncEngine
from tests.accounts.postgres import PostgresServer, find_binaries
from tests.cluster.ray.live.conftest import TestCluster
from tests.cluster.ray.live.test_replicas import local_engine
from tests.server.conftest import Served
from tests.support.bank import Bank
from tests.support.small_tokenizer import small_tokenizer
from tests.support.sockets import listening, port_of

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]
CHAT = "/v1/chat/completions"
NUM_STREAMS = 64
WaitUntil = Callable[..., Any]


class Front:
    """An API process in front of an engine. `rebuild` is for `Bank`."""

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
        async with listening(self.app, self.services.config) as listener:
            url = f"http://127.0.0.1:{port_of(listener)}"
            async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits()) as client:
                yield client


def body(number: int, num_tokens: int) -> dict[str, Any]:
    sampling = {"temperature": 0.8, "seed": number} if number % 2 else {"temperature": 0}
    return {
        "model": "mercury-2",
        "messages": [{"role": "user", "content": f"{number} questions about {number}"}],
        "max_tokens": num_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **sampling,
    }


async def ask(
    client: httpx.AsyncClient, content: dict[str, Any], key: dict[str, str] | None = None
) -> tuple[str, dict[str, Any]]:
    """The text and the usage of one stream."""
    text, usage = "", dict[str, Any]()
    async with client.stream("POST", CHAT, json=content, headers=key) as reply:
        assert reply.status_code == 200, await reply.aread()
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                assert "error" not in chunk, chunk
                text += "".join(each["delta"].get("content") or "" for each in chunk["choices"])
                usage = chunk.get("usage") or usage
    assert usage
    return text, usage


async def undisturbed(bodies: list[dict[str, Any]], home: Path) -> list[str]:
    """The texts of a server with an engine of its own."""
    engine = AsyncEngine(local_engine())
    try:
        async with Front(engine, home).client() as client:
            return [text for text, _ in await asyncio.gather(*(ask(client, each) for each in bodies))]
    finally:
        await engine.close()


async def with_two_replicas(cluster: TestCluster, wait_until: WaitUntil) -> None:
    await asyncio.to_thread(cluster.deploy, min_replicas=2, max_replicas=2)
    await wait_until(lambda: cluster.replicas().get("RUNNING", 0) == 2, 120.0)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed")
    server = PostgresServer(binaries, "-c fsync=off")
    try:
        server.start()
        yield server
        server.stop()
    finally:
        server.remove()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the servers with accounts: the database belongs to one pepper file."""
    return tmp_path_factory.mktemp("home")


@asynccontextmanager
async def paid(cluster: TestCluster, postgres: PostgresServer, home: Path) -> AsyncIterator[tuple[Bank, Front]]:
    accounts = await Accounts.open(postgres.url, AccountsConfig(pepper_path=home / "pepper"))
    try:
        front = Front(await cluster.engine(), home)
        yield Bank(accounts, cast(Served, front)), front
    finally:
        await accounts.close()


async def test_http_streams_equal_those_of_one_server(
    cluster: TestCluster, wait_until: WaitUntil, tmp_path: Path
) -> None:
    await with_two_replicas(cluster, wait_until)
    bodies = [body(i, 24) for i in range(NUM_STREAMS)]
    async with Front(await cluster.engine(), tmp_path).client() as client:
        found = await asyncio.gather(*(ask(client, each) for each in bodies))
    assert [text for text, _ in found] == await undisturbed(bodies, tmp_path)


async def test_the_ledger_is_exact_after_the_loss_of_a_node(
    cluster: TestCluster, wait_until: WaitUntil, postgres: PostgresServer, home: Path
) -> None:
    await with_two_replicas(cluster, wait_until)
    bodies = [body(i, 120) for i in range(100, 112)]
    async with paid(cluster, postgres, home) as (bank, front), front.client() as client:
        key = await bank.key()
        streams = [asyncio.create_task(ask(client, each, key)) for each in bodies]
        await asyncio.sleep(0.5)
        await asyncio.to_thread(cluster.kill_node)
        found = await asyncio.gather(*streams)
        # Ray starts nodes from the main thread only.
        cluster.add_node()
        # A cached prompt token costs a tenth.
        charged = sum(10 * usage["total_tokens"] - 9 * usage["cached_input_tokens"] for _, usage in found) // 10
        assert await bank.spent() == charged
    assert [text for text, _ in found] == await undisturbed(bodies, home)
    assert sum(usage["quicksilver"]["migrated"] for _, usage in found) > 0
