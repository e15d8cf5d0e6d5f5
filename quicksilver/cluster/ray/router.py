"""AffinityRouter: Ray Serve asks it for the replicas of a request, the best first.

It runs in the process that holds the handle. The loads are the requests that this process has open at each replica.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from quicksilver.cluster.routing.affinity import Replica, rank


class AffinityRouter(RequestRouter):  # type: ignore[misc]
    def initialize_state(self, **kwargs: Any) -> None:
        # Request -> its replica. Ray also reports the end of requests that it has not reported as routed.
        self._open: dict[str, str] = {}

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """One replica per rank; a replica that rejects the request lets the next one have it."""
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        arguments: list[Any] = list(pending_request.args) if pending_request is not None else []
        keys, avoided = (arguments[1], arguments[2]) if len(arguments) >= 3 else ((), ())
        num_open = Counter(self._open.values())
        names = rank(keys, [Replica(name, num_open[name]) for name in by_name], os.urandom(8))
        wanted = arguments[3] if len(arguments) == 4 else None

        def order(name: str) -> tuple[bool, int]:
            # Of the avoided replicas, the first of the list is the best.
            return name != wanted, avoided.index(name) if name in avoided else -1

        return [[by_name[name]] for name in sorted(names, key=order)]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        self._open[pending_request.metadata.internal_request_id] = replica_id.unique_id

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self._open.pop(internal_request_id, None)
