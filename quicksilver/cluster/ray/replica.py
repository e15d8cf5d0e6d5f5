"""EngineReplica: the class of an engine deployment. It runs an engine worker process and passes frames to and from it.

A crash of the worker ends neither the replica nor its streams: `RemoteEngine` starts another worker and continues them.
Errors travel as `Refused` frames, so no exception of ours is pickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from quicksilver.cluster.ray import messages
from quicksilver.core import Delta
from quicksilver.worker import protocol
from quicksilver.worker.client import RemoteEngine

# A worker that is not ready for longer makes its replica unhealthy.
MAX_NOT_READY_S = 120.0


@dataclass(slots=True)
class _OpenRequest:
    results: AsyncGenerator[protocol.Reply, None]
    # The next result; None while the reader has not asked for it.
    waiting: asyncio.Future[protocol.Reply] | None = None


class EngineReplica:
    async def __init__(self, config: bytes) -> None:  # type: ignore[misc]
        """Returns when the model is loaded. Ray Serve awaits the constructor."""
        from ray import serve

        self._name = serve.get_replica_context().replica_id.unique_id
        arguments = messages.decode_config(config).arguments
        self._engine = await RemoteEngine([sys.executable, *arguments]).start()
        self._open: dict[str, _OpenRequest] = {}
        self._ready_at = time.monotonic()

    async def describe(self, command: bytes, keys: list[bytes], avoided: list[str]) -> bytes:
        """A ReplicaInfo. The arguments are for the router."""
        stats = self._engine.health().stats
        return messages.encode(messages.ReplicaInfo(self._name, self._engine.info, stats))

    async def stream(self, command: bytes, keys: list[bytes], avoided: list[str]) -> AsyncGenerator[bytes, None]:
        """Replies to a Submit or a Score, and heartbeats while there are none. The other arguments are for the
        router."""
        decoded = messages.decode_command(command)
        assert isinstance(decoded, protocol.Submit | protocol.Score)
        yield messages.encode(messages.Accepted(self._name, self._engine.info.fingerprint))
        request_id = decoded.request.id
        found = self._open[request_id] = _OpenRequest(self._results(decoded))
        try:
            async with aclosing(found.results):
                async for reply in self._with_heartbeats(request_id, found):
                    yield messages.encode(reply)
        finally:
            del self._open[request_id]

    async def _results(self, command: protocol.Submit | protocol.Score) -> AsyncGenerator[protocol.Reply, None]:
        if isinstance(command, protocol.Score):
            yield protocol.GotScores(command.request.id, await self._engine.score(command.request))
            return
        async with aclosing(self._engine.stream(command.request)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    yield protocol.GotEvents([event])
                else:
                    yield protocol.GotEvents([], [event])

    async def _with_heartbeats(self, request_id: str, found: _OpenRequest) -> AsyncGenerator[protocol.Reply, None]:
        while True:
            waiting = found.waiting = asyncio.ensure_future(_next(found.results))
            try:
                while not (await asyncio.wait({waiting}, timeout=messages.HEARTBEAT_S))[0]:
                    health = self._engine.health()
                    yield protocol.Heartbeat(health.stats, health.step_s)
                reply = waiting.result()
            except StopAsyncIteration:
                return
            except Exception as error:
                yield protocol.refuse(request_id, error)
                return
            finally:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                found.waiting = None
            yield reply

    async def abort(self, request_id: str, keys: list[bytes], avoided: list[str], replica: str) -> None:
        """Ends a request whose reader is gone, in case its cancellation did not arrive. The router sends the call to
        another replica if the one that is meant is lost."""
        found = self._open.get(request_id) if replica == self._name else None
        if found is None:
            return
        if found.waiting is not None and not found.waiting.done():
            found.waiting.cancel()
        else:
            # The stream waits for its reader.
            await found.results.aclose()

    async def check_health(self) -> None:
        """Called by Ray Serve, which replaces a replica whose worker does not become ready again."""
        now = time.monotonic()
        if self._engine.is_ready:
            self._ready_at = now
        elif now - self._ready_at > MAX_NOT_READY_S:
            raise RuntimeError("the engine worker does not start")

    async def __del__(self) -> None:  # type: ignore[misc]
        with contextlib.suppress(Exception):
            await self._engine.close()


async def _next(results: AsyncGenerator[protocol.Reply, None]) -> protocol.Reply:
    return await anext(results)
