"""UnknownFirstRouter: Ray Serve asks it for the replicas of a call, the best first.

The only calls are those by which API processes find replicas.
"""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica


class UnknownFirstRouter(RequestRouter):  # type: ignore[misc]
    def initialize_state(self, **kwargs: Any) -> None:
        """Required by Ray Serve; this router has no state."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """One replica per rank, those that the caller does not know first."""
        known: list[str] = list(pending_request.args[0]) if pending_request is not None else []
        mixed = random.sample(candidate_replicas, len(candidate_replicas))
        return [[replica] for replica in sorted(mixed, key=lambda each: each.replica_id.unique_id in known)]
