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

from quicksilver.cluster.ray import messages
from quicksilver.core import Delta, Event
from quicksilver.errors import QuicksilverError
from quicksilver.worker import protocol
from quicksilver.worker.client import RemoteEngine

# A worker that is not ready for longer makes its replica unhealthy.
MAX_NOT_READY_S = 120.0


class EngineReplica:
    async def __init__(self, config: bytes) -> None:  # type: ignore[misc]
        """Returns when the model is loaded. Ray Serve awaits the constructor."""
        from ray import serve

        self._name = serve.get_replica_context().replica_id.unique_id
        arguments = messages.decode_config(config).arguments
        self._engine = await RemoteEngine([sys.executable, *arguments]).start()
        self._open: dict[str, asyncio.Future[Event]] = {}
        self._ready_at = time.monotonic()

    async def describe(self, command: bytes, keys: list[bytes], avoided: list[str]) -> bytes:
        """A ReplicaInfo. The arguments are for the router."""
        stats = self._engine.health().stats
        return messages.encode(messages.ReplicaInfo(self._name, self._engine.info, stats))

    async def stream(self, command: bytes, keys: list[bytes], avoided: list[str]) -> AsyncGenerator[bytes, None]:
        """Replies to a Submit: events, and heartbeats while there are none. The other arguments are for the router."""
        submit = messages.decode_command(command)
        assert isinstance(submit, protocol.Submit)
        yield messages.encode(messages.Accepted(self._name, self._engine.info.fingerprint))
        async with aclosing(self._engine.stream(submit.request)) as events:
            async for reply in self._replies(submit.request.id, events):
                yield messages.encode(reply)

    async def _replies(
        self, request_id: str, events: AsyncGenerator[Event, None]
    ) -> AsyncGenerator[protocol.Reply, None]:
        is_finished = False
        while not is_finished:
            waiting = self._open[request_id] = asyncio.ensure_future(_next(events))
            try:
                while not (await asyncio.wait({waiting}, timeout=messages.HEARTBEAT_S))[0]:
                    health = self._engine.health()
                    yield protocol.Heartbeat(health.stats, health.step_s)
                event = waiting.result()
            except Exception as error:
                yield protocol.refuse(request_id, error)
                return
            finally:
                del self._open[request_id]
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            is_delta = isinstance(event, Delta)
            yield protocol.GotEvents([event] if is_delta else [], [] if is_delta else [event])  # type: ignore[list-item]
            is_finished = isinstance(event, Delta) and event.finish is not None

    async def score(self, command: bytes, keys: list[bytes], avoided: list[str]) -> bytes:
        """The reply to a Score."""
        score = messages.decode_command(command)
        assert isinstance(score, protocol.Score)
        try:
            return messages.encode(protocol.GotScores(score.request.id, await self._engine.score(score.request)))
        except QuicksilverError as error:
            return messages.encode(protocol.refuse(score.request.id, error))

    async def abort(self, request_id: str, keys: list[bytes], avoided: list[str], replica: str) -> None:
        """Ends a stream whose reader is gone, in case its cancellation did not arrive. The router sends the call to
        another replica if the one that is meant is lost."""
        waiting = self._open.get(request_id) if replica == self._name else None
        if waiting is not None:
            waiting.cancel()

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


async def _next(events: AsyncGenerator[Event, None]) -> Event:
    return await anext(events)
