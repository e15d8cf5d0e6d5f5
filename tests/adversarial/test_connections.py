"""Connections beyond the bound: callers without a key cannot keep the others out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from quicksilver.cluster.proxy.app import requires_key
from quicksilver.server.app import PROBES, PUBLIC
from quicksilver.server.http.connections import TRUST
from tests.server.conftest import says
from tests.support.bank import Bank
from tests.support.routed import routed_servers
from tests.support.sockets import Connection, connect, exchange, listening, port_of, read_to_end

HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
HEALTH_ONCE = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


async def open_and_ask(port: int, request: bytes) -> Connection:
    """A connection that stays open after one reply."""
    reader, writer = await connect(port)
    writer.write(request)
    assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 200")
    return reader, writer


def models_request(key: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in key.items())
    return f"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n".encode()


async def test_idle_connections_without_a_key_make_room(bank: Bank) -> None:
    served, key = bank.served, await bank.key()
    served.configure(max_connections=8)
    async with listening(served.app, served.services.config) as listener:
        port = port_of(listener)
        silent = [await connect(port) for _ in range(4)]
        idle = [await open_and_ask(port, HEALTH) for _ in range(4)]
        trusted = [await open_and_ask(port, models_request(key)) for _ in range(8)]
        for reader, writer in (*silent, *idle):
            await asyncio.wait_for(read_to_end(reader), 10)
            assert reader.at_eof()
            writer.close()
        for _, writer in trusted:
            writer.write(models_request(key))
        for reader, writer in trusted:
            reply = await asyncio.wait_for(reader.readuntil(b"HTTP/1.1 200"), 10)
            assert reply.endswith(b"HTTP/1.1 200")
            writer.close()


async def test_a_connection_beyond_the_bound_is_a_503_and_is_closed(bank: Bank) -> None:
    served, key = bank.served, await bank.key()
    served.configure(max_connections=2)
    async with listening(served.app, served.services.config) as listener:
        port = port_of(listener)
        trusted = [await open_and_ask(port, models_request(key)) for _ in range(2)]
        reply = await exchange(port, HEALTH)
        assert reply.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1\r\n" in reply
        assert b"connection: close\r\n" in reply
        assert b"server_overloaded" in reply
        trusted[0][1].close()
        async with asyncio.timeout(10):
            while (await exchange(port, HEALTH_ONCE)).startswith(b"HTTP/1.1 503"):
                await asyncio.sleep(0.01)
        trusted[1][1].close()


@pytest.mark.parametrize(
    ("path", "is_trusted"),
    [("/", False), ("/feedback", False), ("/v1/none", False), ("/v1/models", True)],
)
async def test_a_router_trusts_a_connection_after_a_reply_that_takes_a_key(
    tmp_path: Path, path: str, is_trusted: bool
) -> None:
    trusted: list[str] = []
    async with routed_servers(tmp_path, [says("hi")]) as found:

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope[TRUST] = lambda: trusted.append(path)
            await found.app(scope, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            assert (await client.get(path)).status_code < 500
    assert bool(trusted) is is_trusted


def test_no_route_without_a_key_is_a_proof_of_one() -> None:
    paths = [getattr(route, "path", "") for router in (*PROBES, *PUBLIC) for route in router.routes]
    assert len(paths) >= 5
    assert not any(map(requires_key, paths))
