"""EngineReplica: the class of an engine deployment. It runs an engine worker process and listens for API processes.

Ray starts, watches, scales and ends it; requests do not pass through Ray. A crash of the worker ends neither the
replica nor its streams: `RemoteEngine` starts another worker and continues them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

from quicksilver.cluster.ray import messages
from quicksilver.cluster.ray.listener import ReplicaListener
from quicksilver.cluster.ray.scaling import OPEN
from quicksilver.worker.client import RemoteEngine

# Seconds without a ready worker after which a replica is unhealthy.
MAX_NOT_READY_S = 120.0
# The address to listen on, in the environment of replicas of a cluster on one machine.
HOST_VARIABLE = "QUICKSILVER_REPLICA_HOST"


def own_address() -> str:
    """Where to listen: the address by which the other machines of the cluster know this one."""
    import ray

    if HOST_VARIABLE in os.environ:
        return os.environ[HOST_VARIABLE]
    node_id = ray.get_runtime_context().get_node_id()
    return str(next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == node_id))


class EngineReplica:
    async def __init__(self, config: bytes) -> None:  # type: ignore[misc]
        """Returns when the model is loaded. Ray Serve awaits the constructor."""
        from ray import serve

        self._name = serve.get_replica_context().replica_id.unique_id
        self._config = messages.decode_config(config)
        self._engine = await RemoteEngine([sys.executable, *self._config.arguments]).start()
        self._host = own_address()
        self._listener = await ReplicaListener(self._engine, self._config.max_open).open(self._host)
        self._ready_at = time.monotonic()

    async def describe(self, known: list[str]) -> bytes:
        """An encoded ReplicaInfo. Only `UnknownFirstRouter` uses the argument, the replicas that the caller knows."""
        listener = self._listener
        info = messages.ReplicaInfo(self._name, self._host, listener.port, listener.secret, self._config.max_open)
        return messages.encode(info)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Ray Serve for the policy in `scaling.py`."""
        return {OPEN: float(self._listener.engine.num_open)}

    async def check_health(self) -> None:
        """Called by Ray Serve, which replaces a replica whose worker does not become ready again."""
        now = time.monotonic()
        if self._engine.is_ready:
            self._ready_at = now
        elif now - self._ready_at > MAX_NOT_READY_S:
            raise RuntimeError("the engine worker does not start")

    async def __del__(self) -> None:  # type: ignore[misc]
        """Called by Ray Serve when the replica is removed, which is killed `drain_s` later."""
        with contextlib.suppress(Exception):
            await self._listener.drain()
            await self._engine.close()
