"""The server in front of engine replicas on real raylets: streams over HTTP, lost nodes, accounts on PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from quicksilver.worker.async_engine import AsyncEngine
from tests.accounts.postgres import PostgresServer, find_binaries
from tests.cluster.ray.live.conftest import MODEL, TestCluster
from tests.cluster.ray.live.front import Front, api_process, open_accounts
from tests.cluster.ray.live.test_replicas import local_engine
from tests.server.conftest import Served
from tests.support.bank import Bank

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]
CHAT = "/v1/chat/completions"
NUM_STREAMS = 64
# Requests while replicas are removed and added.
NUM_SCALED = 200
# Of the accounts database.
OUTAGE_S = 10.0
WaitUntil = Callable[..., Any]


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
    client: httpx.AsyncClient,
    content: dict[str, Any],
    key: dict[str, str] | None = None,
    began: asyncio.Event | None = None,
) -> tuple[str, dict[str, Any]]:
    """The text and the usage of one stream. `began` is set at its first text."""
    text, usage = "", dict[str, Any]()
    async with client.stream("POST", CHAT, json=content, headers=key) as reply:
        async for piece, found in pieces(reply):
            text, usage = text + piece, found or usage
            if began is not None and text:
                began.set()
    assert usage
    return text, usage


async def begin(
    client: httpx.AsyncClient, bodies: list[dict[str, Any]], key: dict[str, str]
) -> list[asyncio.Task[tuple[str, dict[str, Any]]]]:
    """Open streams, each of which has its first text."""
    began = [asyncio.Event() for _ in bodies]
    streams = [asyncio.create_task(ask(client, body, key, event)) for body, event in zip(bodies, began, strict=True)]
    await asyncio.gather(*(event.wait() for event in began))
    return streams


async def pieces(reply: httpx.Response) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The text and the usage of each chunk."""
    assert reply.status_code == 200, await reply.aread()
    async for line in reply.aiter_lines():
        if line.startswith("data: {"):
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            yield "".join(each["delta"].get("content") or "" for each in chunk["choices"]), chunk.get("usage") or {}


async def read_until_killed(
    client: httpx.AsyncClient, content: dict[str, Any], headers: dict[str, str], pid: int
) -> str:
    """The text of a stream up to the death of its server, which is killed after some characters."""
    received, is_killed = "", False
    try:
        async with client.stream("POST", CHAT, json=content, headers=headers) as reply:
            async for piece, _ in pieces(reply):
                received += piece
                if len(received) >= 10 and not is_killed:
                    os.kill(pid, signal.SIGKILL)
                    is_killed = True
    except httpx.HTTPError:
        return received
    raise AssertionError("the stream was not cut off")


def cost(usage: dict[str, Any]) -> int:
    """In tenths of a token: a cached prompt token costs a tenth."""
    return int(10 * usage["total_tokens"] - 9 * usage["cached_input_tokens"])


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
    accounts = await open_accounts(postgres.url, home)
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
        streams = await begin(client, bodies, key)
        await asyncio.to_thread(cluster.kill_node)
        found = await asyncio.gather(*streams)
        # Ray starts nodes from the main thread only.
        cluster.add_node()
        assert await bank.spent() == sum(cost(usage) for _, usage in found) // 10
    assert [text for text, _ in found] == await undisturbed(bodies, home)
    assert sum(usage["quicksilver"]["migrated"] for _, usage in found) > 0


async def test_no_request_fails_while_replicas_are_drained_and_added(
    cluster: TestCluster, wait_until: WaitUntil, tmp_path: Path
) -> None:
    await with_two_replicas(cluster, wait_until)
    bodies = [body(i, 16) for i in range(200, 208)]
    expected, is_over, num_done = await undisturbed(bodies, tmp_path), asyncio.Event(), 0

    async def keep_asking(client: httpx.AsyncClient, number: int) -> None:
        nonlocal num_done
        while num_done < NUM_SCALED or not is_over.is_set():
            assert (await ask(client, bodies[number]))[0] == expected[number]
            num_done += 1

    async def scale() -> None:
        for num_replicas in (1, 2):
            await asyncio.to_thread(cluster.deploy, min_replicas=num_replicas, max_replicas=num_replicas)
            await wait_until(lambda wanted=num_replicas: cluster.replicas() == {"RUNNING": wanted}, 120.0)
        is_over.set()

    async with Front(await cluster.engine(), tmp_path).client() as client:
        await asyncio.gather(scale(), *(keep_asking(client, number) for number in range(len(bodies))))
    assert num_done >= NUM_SCALED


async def test_a_request_whose_api_process_is_killed_is_repeated_with_its_key_and_charged_once(
    cluster: TestCluster, postgres: PostgresServer, home: Path
) -> None:
    content = body(300, 120)
    (expected,) = await undisturbed([content], home)
    async with paid(cluster, postgres, home) as (bank, front), front.client() as other:
        headers = {**await bank.key(), "idempotency-key": "once"}
        async with api_process(cluster.config.address, MODEL, home, postgres.url) as (pid, client):
            received = await read_until_killed(client, content, headers, pid)
        assert 10 <= len(received) < len(expected)
        assert expected.startswith(received)
        async with asyncio.timeout(60):
            while (reply := await other.post(CHAT, json=content, headers=headers)).status_code == 409:
                await asyncio.sleep(0.5)
        found = [each async for each in pieces(reply)]
        assert "".join(piece for piece, _ in found) == expected
        replayed = await other.post(CHAT, json=content, headers=headers)
        assert (replayed.content, replayed.headers["idempotent-replayed"]) == (reply.content, "true")
        assert await bank.spent() == cost(found[-1][1]) // 10


async def test_streams_with_a_reservation_finish_after_an_outage_of_the_database(
    cluster: TestCluster, postgres: PostgresServer, home: Path
) -> None:
    bodies = [body(i, 200) for i in range(400, 404)]
    async with paid(cluster, postgres, home) as (bank, front), front.client() as client:
        key = await bank.key()
        streams = await begin(client, bodies, key)
        postgres.kill()
        try:
            refused = await client.post(CHAT, json=body(500, 4), headers=key)
            await asyncio.sleep(OUTAGE_S)
        finally:
            postgres.start()
        found = await asyncio.gather(*streams)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "ledger_unavailable")
        assert "retry-after" in refused.headers
        assert await bank.spent() == sum(cost(usage) for _, usage in found) // 10
    assert [text for text, _ in found] == await undisturbed(bodies, home)
