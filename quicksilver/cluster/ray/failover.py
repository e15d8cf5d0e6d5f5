"""Failover: whether and when a request that failed at one replica is sent to another one."""

from __future__ import annotations

import asyncio

from quicksilver.errors import EngineDied, Unavailable
from quicksilver.worker.pending import MAX_MIGRATIONS

# Seconds for which a request is sent again, from its first failure since the answer last advanced, and the pauses.
RESUME_S, FIRST_PAUSE_S, MAX_PAUSE_S = 60.0, 0.1, 5.0
# Refusals of a request of which nothing has been sent to the client: one other replica is tried.
MAX_REFUSED = 1


class ReplicaLost(Exception):
    """The replica cannot continue this request; another one can."""


class Failover:
    """The failures of one request. `attempt_id` and `avoided` are those of the next attempt."""

    def __init__(self, request_id: str) -> None:
        self.num_lost = 0
        self._lost: list[str] = []
        self._refused: list[str] = []
        self._request_id = request_id
        self._num_failed = 0
        self._num_refused = 0
        self._pause_s = FIRST_PAUSE_S
        # Event loop time of the first failure since the answer last advanced.
        self._failed_at: float | None = None

    @property
    def avoided(self) -> list[str]:
        """Replicas that failed, used only if no other can take the request, in this order: first those that refused,
        the oldest refusal first, then lost ones."""
        return [*(name for name in self._refused if name not in self._lost), *self._lost]

    @property
    def attempt_id(self) -> str:
        """Every attempt has an id of its own: an abort of a lost one may still be on its way to the same replica."""
        return f"{self._request_id}~{self._num_failed}" if self._num_failed else self._request_id

    def advance(self) -> None:
        """Records that a part of the answer has arrived."""
        self._failed_at = None
        self._pause_s = FIRST_PAUSE_S

    async def wait(self, error: ReplicaLost | Unavailable, replica: str, *, has_begun: bool) -> None:
        """Returns when the request may be sent again. Raises if it may not. `replica` is empty if none accepted it;
        `has_begun` tells that the client has a part of the answer."""
        self._num_failed += 1
        failed = self._lost if isinstance(error, ReplicaLost) else self._refused
        if replica:
            failed[:] = [*(name for name in failed if name != replica), replica]
        if isinstance(error, ReplicaLost):
            self._count_loss()
        elif not has_begun:
            self._count_refusal(error, replica)
        now = asyncio.get_running_loop().time()
        self._failed_at = now if self._failed_at is None else self._failed_at
        if now - self._failed_at > RESUME_S:
            raise error if isinstance(error, Unavailable) else EngineDied("no replica continued this request; retry")
        if has_begun and not (replica and isinstance(error, ReplicaLost)):
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)

    def _count_loss(self) -> None:
        self.num_lost += 1
        if self.num_lost > MAX_MIGRATIONS:
            raise EngineDied(f"{self.num_lost} replicas were lost under this request; retry")

    def _count_refusal(self, error: Unavailable, replica: str) -> None:
        """Raises at the second refusal, or if no replica accepted the request: it has then waited for all of them."""
        self._num_refused += 1
        if self._num_refused > MAX_REFUSED or not replica:
            raise error
