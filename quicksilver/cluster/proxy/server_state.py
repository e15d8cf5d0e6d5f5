"""RoutedServer: one server behind the router, with its health, its breaker, its open requests and idle connections."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from quicksilver.cluster.proxy.config import Address, RouteConfig
from quicksilver.cluster.proxy.connection import ServerConnection, ServerTimedOut
from quicksilver.server.breaker import Breaker

# Longest time for which a server that refused a request gets only requests that no other server can take.
MAX_BUSY_S = 5.0
MAX_IDLE_CONNECTIONS = 256


class ServerHealth(StrEnum):
    """`ANONYMOUS`: it answers without a key, and the router is on a public address."""

    UNKNOWN = "unknown"
    READY = "ready"
    NOT_READY = "not_ready"
    UNREACHABLE = "unreachable"
    ANONYMOUS = "anonymous"


@dataclass(slots=True)
class Counts:
    requests: int = 0
    failures: int = 0
    refusals: int = 0


class RoutedServer:
    def __init__(self, number: int, address: Address, config: RouteConfig) -> None:
        self.number = number
        self.address = address
        self.breaker = Breaker(config.breaker)
        self.health = ServerHealth.UNKNOWN
        # The reason that the server gives for not being ready.
        self.status = ""
        self.counts = Counts()
        self.num_open = 0
        # Requests of other clients, by the last health check.
        self.num_elsewhere = 0
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._busy_until = 0.0
        self._idle: deque[ServerConnection] = deque()
        self._active: set[ServerConnection] = set()

    @property
    def name(self) -> str:
        return self.address.name

    @property
    def load(self) -> int:
        return self.num_open + self.num_elsewhere

    @property
    def is_available(self) -> bool:
        is_full = self.num_open >= self._config.max_open
        return self.health is ServerHealth.READY and not is_full and self.breaker.allows()

    @property
    def is_busy(self) -> bool:
        """Whether it refused a request a short time ago."""
        return self._loop.time() < self._busy_until

    def mark_busy(self, seconds: float) -> None:
        self.counts.refusals += 1
        self._busy_until = self._loop.time() + min(max(seconds, 0.0), MAX_BUSY_S)

    async def connect(self) -> ServerConnection:
        """A connection for one request, kept open from an earlier one or new. Raises ServerFailed."""
        self.drop_old_connections()
        connection = None
        while self._idle and connection is None:
            newest = self._idle.pop()
            connection = newest if newest.is_reusable else None
        if connection is None:
            connection = await ServerConnection.open(self.address, self._config.connect_s)
        self._active.add(connection)
        return connection

    def give_back(self, connection: ServerConnection) -> None:
        """After a request, whether its reply is complete or not."""
        self._active.discard(connection)
        if connection.is_reusable and len(self._idle) < MAX_IDLE_CONNECTIONS:
            connection.idle_since = self._loop.time()
            self._idle.append(connection)
        else:
            connection.abort()

    def drop_old_connections(self) -> None:
        oldest_kept = self._loop.time() - self._config.keep_idle_s
        while self._idle and (self._idle[0].idle_since < oldest_kept or not self._idle[0].is_reusable):
            self._idle.popleft().abort()

    def abort_stalled(self) -> None:
        """Ends connections whose server has sent nothing for too long while the reader waits."""
        now = self._loop.time()
        for connection in tuple(self._active):
            if connection.is_waiting:
                limit_s = self._config.idle_s if connection.has_head else self._config.head_s
                if now - connection.last_activity > limit_s:
                    connection.abort(ServerTimedOut("the server did not answer in time"))

    def close(self) -> None:
        for connection in (*self._idle, *self._active):
            connection.abort()
        self._idle.clear()
