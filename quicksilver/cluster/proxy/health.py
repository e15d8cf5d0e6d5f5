"""Health checks: `GET /ready` of each server at intervals, and whether a server requires keys."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import orjson

from quicksilver.cluster.proxy.config import RouteConfig
from quicksilver.cluster.proxy.connection import ServerFailed
from quicksilver.cluster.proxy.headers import VIA
from quicksilver.cluster.proxy.server_state import RoutedServer, ServerHealth

log = logging.getLogger("quicksilver.route")

# Checks in a row that must fail before a server counts as unreachable.
MAX_FAILED = 2
MAX_REPLY_BYTES = 64 * 2**10


class HealthChecks:
    """`check_all` once, then `run` as a task."""

    def __init__(self, servers: Sequence[RoutedServer], config: RouteConfig) -> None:
        self._servers = servers
        self._config = config
        self._num_failed = {server.name: MAX_FAILED - 1 for server in servers}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._config.health_interval_s)
            await self.check_all()
            for server in self._servers:
                server.abort_stalled()
                server.drop_old_connections()

    async def check_all(self) -> None:
        await asyncio.gather(*(self.check(server) for server in self._servers))

    async def check(self, server: RoutedServer) -> None:
        before = server.health
        try:
            num_open = server.num_open
            status, reply = await self._get(server, "/ready")
        except ServerFailed as error:
            self._num_failed[server.name] += 1
            if self._num_failed[server.name] >= MAX_FAILED:
                server.health, server.status = ServerHealth.UNREACHABLE, str(error)
        else:
            self._num_failed[server.name] = 0
            server.status = str(reply.get("status", ""))
            server.num_elsewhere = max(_count(reply, "running") + _count(reply, "waiting") - num_open, 0)
            server.health = await self._judge(server, status)
        if server.health is not before:
            log.info("server is %s", server.health, extra={"server": server.name, "status": server.status})

    async def _judge(self, server: RoutedServer, status: int) -> ServerHealth:
        if status != 200:
            return ServerHealth.NOT_READY
        # Asked every time: a server may restart without keys between two checks.
        if not self._config.is_public or self._config.allow_anonymous:
            return ServerHealth.READY
        try:
            answered, _ = await self._get(server, "/v1/models")
        except ServerFailed:
            return server.health
        return ServerHealth.READY if answered == 401 else ServerHealth.ANONYMOUS

    async def _get(self, server: RoutedServer, path: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON object of a reply. Raises ServerFailed."""
        try:
            async with asyncio.timeout(self._config.health_timeout_s):
                return await self._exchange(server, path)
        except TimeoutError:
            raise ServerFailed("the health check was not answered in time") from None

    async def _exchange(self, server: RoutedServer, path: str) -> tuple[int, dict[str, Any]]:
        connection = await server.connect()
        try:
            connection.begin(has_body=True)
            host = server.name.encode()
            await connection.write(b"GET %b HTTP/1.1\r\nhost: %b\r\nvia: %b\r\n\r\n" % (path.encode(), host, VIA))
            head = await connection.read_head()
            body = bytearray()
            while (piece := await connection.read()) and len(body) < MAX_REPLY_BYTES:
                body += piece
            return head.status, _parse(bytes(body))
        finally:
            server.give_back(connection)


def _parse(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _count(reply: dict[str, Any], name: str) -> int:
    value = reply.get(name)
    return value if isinstance(value, int) and value > 0 else 0
