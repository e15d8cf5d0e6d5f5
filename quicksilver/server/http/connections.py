"""ConnectionTable: a bound on the open connections of one listener.

A connection is trusted once a request on it passed authentication. At the bound a new connection displaces the oldest
untrusted one that is idle or still sends its head, so that callers without a key cannot keep the others out. If there
is none, the new connection is refused.
"""

from __future__ import annotations

import resource
import select
from typing import Protocol

# Files besides the connections of the main listener: databases, pools, logs, the other listener, refusals in flight.
OTHER_FILES = 512
# Refused connections that may read their reply at the same time; further ones are cut.
MAX_REFUSING = 128
# Key of the scope: a function that marks the connection as trusted.
TRUST = "quicksilver.trust_connection"


class Evictable(Protocol):
    @property
    def is_idle(self) -> bool:
        """Whether no request is being read or answered."""

    def evict(self) -> None:
        """Closes the connection without a reply."""


class ConnectionTable:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        # Both in the order in which the connections were opened.
        self._open: dict[Evictable, None] = {}
        self._untrusted: dict[Evictable, None] = {}
        self.num_refusing = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Evictable) -> bool:
        """False if the connection must be refused."""
        if len(self._open) >= self.limit and not self._evict_one():
            return False
        self._open[connection] = self._untrusted[connection] = None
        return True

    def trust(self, connection: Evictable) -> None:
        self._untrusted.pop(connection, None)

    def remove(self, connection: Evictable) -> None:
        self._open.pop(connection, None)
        self._untrusted.pop(connection, None)

    def _evict_one(self) -> bool:
        oldest = next((connection for connection in self._untrusted if connection.is_idle), None)
        if oldest is None:
            return False
        self.remove(oldest)
        oldest.evict()
        return True


def usable_connections(wanted: int) -> int:
    """`wanted`, or less if the process may not open so many files. Raises the soft limit of the process first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(min(wanted, soft - OTHER_FILES), 1)


def has_input(*descriptors: int) -> bool:
    """Whether a connection can be accepted, or bytes or an end can be read, without waiting."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
