"""InFlightQueue: requests that wait while their key, project or organisation has its most requests in flight.

Each key has a queue of its own, in order of arrival and bounded in length and time. The limit itself is in the ledger
and holds over all processes. The first request of a queue tries again when a request of its organisation ends in this
process, and at intervals, since one may have ended in another process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from quicksilver.accounts.identity import Identity
from quicksilver.errors import TooManyInFlight

Result = TypeVar("Result")
# Seconds between two attempts, if no request ends in this process.
RETRY_S = 0.25


class _Line:
    """The waiting requests of one key."""

    def __init__(self, organization: str) -> None:
        self.organization = organization
        self.tickets: deque[object] = deque()
        self._changed = asyncio.Event()

    def wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait(self, limit_s: float) -> None:
        changed = self._changed
        with suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), limit_s)


class InFlightQueue:
    def __init__(self, max_waiting: int, wait_s: float) -> None:
        self._max_waiting = max_waiting
        self._wait_s = wait_s
        self._lines: dict[str, _Line] = {}

    @property
    def num_waiting(self) -> int:
        return sum(len(line.tickets) for line in self._lines.values())

    async def admit(self, identity: Identity, reserve: Callable[[], Awaitable[Result]]) -> Result:
        """The result of `reserve`, which is tried again as long as it raises TooManyInFlight and the wait lasts."""
        line = self._lines.get(identity.key_id)
        if line is None:
            try:
                return await reserve()
            except TooManyInFlight:
                if self._max_waiting < 1:
                    raise
            line = self._lines.setdefault(identity.key_id, _Line(identity.account_ids[0]))
        if len(line.tickets) >= self._max_waiting:
            raise TooManyInFlight(f"{len(line.tickets)} requests of this key wait already; let some end")
        return await self._wait_in(line, identity.key_id, reserve)

    def end(self, identity: Identity) -> None:
        """A request of this identity has ended: those that wait in its organisation try again."""
        for line in self._lines.values():
            if line.organization == identity.account_ids[0]:
                line.wake()

    async def _wait_in(self, line: _Line, key_id: str, reserve: Callable[[], Awaitable[Result]]) -> Result:
        loop, ticket = asyncio.get_running_loop(), object()
        deadline = loop.time() + self._wait_s
        line.tickets.append(ticket)
        try:
            while (left_s := deadline - loop.time()) > 0:
                await line.wait(min(RETRY_S, left_s))
                if line.tickets[0] is ticket:
                    with suppress(TooManyInFlight):
                        return await reserve()
            raise TooManyInFlight(f"this request waited {self._wait_s:g} s for others to end")
        finally:
            line.tickets.remove(ticket)
            line.wake()
            if not line.tickets:
                self._lines.pop(key_id, None)
