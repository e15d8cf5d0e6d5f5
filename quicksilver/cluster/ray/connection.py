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

    def __init__(self, replica: messages.ReplicaInfo) -> None:
        super().__init__((), WorkerTimeouts(silent_s=messages.SILENT_S))
        self.name = replica.replica
        # Open requests of this process at the replica.
        self.num_open = 0
        self._replica = replica

    @property
    def takes_requests(self) -> bool:
        return self.is_ready and not self._heartbeat.is_draining and self.num_open < self._replica.max_open

    async def _supervise(self) -> None:
        """Reads until the connection ends."""
        host, port = self._replica.host, self._replica.port
        try:
            reader, self._writer = await handshake.connect(host, port, self._replica.secret)
        except OSError as error:
            raise EngineUnavailable(f"no connection to the replica at {host}:{port}: {error!r}") from None
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
        """Unlike those of a local worker, the statistics of a replica already count its restarts and migrations."""
        return stats
