from __future__ import annotations

import asyncio

from quicksilver.cluster.proxy.config import Address, RouteConfig
from quicksilver.cluster.proxy.health import HealthChecks
from quicksilver.cluster.proxy.server_state import RoutedServer, ServerHealth
from tests.support.routed import RawServer, reply

MODELS = reply(b"{}")
KEYED = reply(b"{}", b"401 Unauthorized")


async def answered(ready: bytes, models: bytes, **settings: bool) -> RoutedServer:
    """A server after one check."""

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(models)

    async with RawServer(answer, ready).listening() as port:
        config = RouteConfig((Address("127.0.0.1", port),), **settings)  # type: ignore[arg-type]
        server = RoutedServer(1, config.addresses[0], config)
        await HealthChecks([server], config).check_all()
        server.close()
        return server


async def test_ready_servers_report_their_load() -> None:
    server = await answered(reply(b'{"status": "ready", "running": 3, "waiting": 2}'), MODELS)
    assert (server.health, server.load, server.is_available) == (ServerHealth.READY, 5, True)


async def test_servers_that_are_not_ready_give_their_reason() -> None:
    server = await answered(reply(b'{"status": "draining"}', b"503 Service Unavailable"), MODELS)
    assert (server.health, server.status, server.is_available) == (ServerHealth.NOT_READY, "draining", False)


async def test_anonymous_servers_are_not_used_on_a_public_address() -> None:
    ready = reply(b'{"status": "ready"}')
    assert (await answered(ready, MODELS, is_public=True)).health is ServerHealth.ANONYMOUS
    assert (await answered(ready, KEYED, is_public=True)).health is ServerHealth.READY
    assert (await answered(ready, MODELS, is_public=True, allow_anonymous=True)).health is ServerHealth.READY


async def test_a_server_that_restarts_without_keys_between_two_checks_is_not_used() -> None:
    models = KEYED

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(models)

    async with RawServer(answer).listening() as port:
        config = RouteConfig((Address("127.0.0.1", port),), is_public=True)
        server = RoutedServer(1, config.addresses[0], config)
        checks = HealthChecks([server], config)
        await checks.check_all()
        assert server.health is ServerHealth.READY
        models = MODELS
        await checks.check_all()
        assert server.health is ServerHealth.ANONYMOUS
        server.close()


async def test_a_server_is_unreachable_after_two_checks_and_comes_back() -> None:
    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(MODELS)

    raw = RawServer(answer)
    async with raw.listening() as port:
        config = RouteConfig((Address("127.0.0.1", port),), health_timeout_s=0.5)
        server = RoutedServer(1, config.addresses[0], config)
        checks = HealthChecks([server], config)
        await checks.check_all()
        raw.ready = b"not http\r\n\r\n"
        await checks.check_all()
        assert server.health is ServerHealth.READY
        await checks.check_all()
        assert server.health is ServerHealth.UNREACHABLE
        raw.ready = reply(b'{"status": "ready"}')
        await checks.check_all()
        assert server.health is ServerHealth.READY
        server.close()
