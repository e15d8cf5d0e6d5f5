"""ReplicaConnection: the engine of one replica, over a TCP connection that carries all requests of this process.

The replica sends heartbeats. If it sends nothing for `SILENT_S`, or the connection ends, open requests fail with
EngineDied, and `ClusterEngine` continues them at another replica.
"""

from __future__ import annotations

import logging

from quicksilver.cluster.ray import handshake, messages
from quicksilver.core import EngineStats
from quicksilver.errors import EngineDied, EngineUnavailable, QuicksilverError
from quicksilver.worker.client import RemoteEngine, WorkerTimeouts

log = logging.getLogger("quicksilver.cluster")


class ReplicaConnection(RemoteEngine):
    """`start` returns when the connection is open; raises EngineUnavailable if it cannot be opened."""

    def __init__(self, found: messages.ReplicaInfo) -> None:
        super().__init__((), WorkerTimeouts(silent_s=messages.SILENT_S))
        self.name = found.replica
        # Requests of this process.
        self.num_open = 0
        self._found = found

    @property
    def takes_requests(self) -> bool:
        return self.is_ready and not self._heartbeat.is_draining and self.num_open < self._found.max_open

    async def _supervise(self) -> None:
        """Reads until the connection ends."""
        found = self._found
        try:
            reader, self._writer = await handshake.connect(found.host, found.port, found.secret)
        except OSError as error:
            raise EngineUnavailable(f"no connection to the replica at {found.host}:{found.port}: {error!r}") from None
        try:
            await self._read_while_alive(reader)
        finally:
            self._ready.clear()
            self._writer.transport.abort()
            self._fail_all(EngineDied("the connection to the replica ended"))

    def _kill(self, reason: str) -> None:
        """Ends the connection."""
        log.error("leaving a replica: %s", reason, extra={"replica": self.name})
        assert self._writer is not None
        # Not `close`, which waits until the replica has read what was written.
        self._writer.transport.abort()

    def _take_refusal(self, error: QuicksilverError, request_id: str) -> None:
        """Unlike a worker, a replica whose engine died under a request does not end."""
        pending = self._pending.get(request_id)
        if pending is not None:
            pending.fail(error)

    def _with_counts(self, stats: EngineStats) -> EngineStats:
        """The replica has counted."""
        return stats
