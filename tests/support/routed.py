"""Servers behind a router, all on the event loop of a test and on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from quicksilver.cluster.proxy.app import RouteApp
from quicksilver.cluster.proxy.config import Address, RouteConfig
from quicksilver.cluster.proxy.run import build_admin, open_route
from quicksilver.server.app import build_app
from quicksilver.server.config import ServerConfig
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from tests.support.fake_engine import FakeEngine, Script
from tests.support.small_tokenizer import small_tokenizer
from tests.support.sockets import listening, port_of

READY = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 18\r\n\r\n{"status":"ready"}'
Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """Answers `/ready`; every other request is passed to `answer`, which writes bytes and may close the connection."""

    def __init__(self, answer: Answer, ready: bytes = READY) -> None:
        self.answer, self.ready = answer, ready
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.num_closed_early = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET /ready"):
                    writer.write(self.ready)
                    continue
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(length_of(head)))
                await self.answer(head, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def length_of(head: bytes) -> int:
    lines = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return int(lines[0].split(b":")[1]) if lines else 0


def reply(body: bytes, status: bytes = b"200 OK", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status, headers, len(body), body)


@dataclass
class Routed:
    app: RouteApp
    url: str
    admin_url: str
    engines: list[FakeEngine] = field(default_factory=list)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=20)


@asynccontextmanager
async def routed(ports: Sequence[int], config: RouteConfig | None = None, **settings: object) -> AsyncIterator[Routed]:
    """A router in front of servers on loopback ports."""
    addresses = tuple(Address("127.0.0.1", port) for port in ports)
    config = replace(config or RouteConfig(addresses), addresses=addresses)
    listener = replace(ServerConfig(), **settings)  # type: ignore[arg-type]
    async with (
        open_route(config, listener) as app,
        listening(app, listener) as main,
        listening(build_admin(app), listener) as admin,
    ):
        yield Routed(app, f"http://127.0.0.1:{port_of(main)}", f"http://127.0.0.1:{port_of(admin)}")


@asynccontextmanager
async def routed_servers(
    home: Path, scripts: Sequence[Script], config: RouteConfig | None = None, **settings: object
) -> AsyncIterator[Routed]:
    """A router in front of real servers with scripted engines."""
    engines, ports = [FakeEngine(script) for script in scripts], []
    async with AsyncExitStack() as stack:
        for i, engine in enumerate(engines):
            tokenizer = small_tokenizer()
            server_config = ServerConfig(home=home / str(i), frames_per_s=1e9)
            services = Services(engine, tokenizer, ChatTemplate.own(tokenizer), config=server_config)
            ports.append(port_of(await stack.enter_async_context(listening(build_app(services), server_config))))
        found = await stack.enter_async_context(routed(ports, config, **settings))
        found.engines = engines
        yield found
