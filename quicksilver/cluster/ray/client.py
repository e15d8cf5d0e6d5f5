"""ClusterEngine: an EngineClient whose engines are the replicas of a Ray Serve deployment.

Ray tells which replicas there are; requests go to them over connections of this process. A request
goes to the replica that its prompt's leading pages select (`routing.affinity`). If the replica dies or sends nothing
for `SILENT_S`, the request continues at another replica with the same model, from its prompt and committed tokens: the
same text, and the client sees a pause. Only the API process counts and charges, so nothing is sent or charged twice. A
request of which no token has arrived is tried at one other replica if the first one refuses it (`failover.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import fields, replace
from typing import Any

from quicksilver.cluster.ray import handshake, messages
from quicksilver.cluster.ray.failover import Failover, ReplicaLost
from quicksilver.cluster.routing.affinity import PREFIX_PAGES, Replica, prefix_key, rank
from quicksilver.core import (
    Delta,
    EngineHealth,
    EngineInfo,
    EngineState,
    EngineStats,
    Event,
    Request,
    ScoreRequest,
    Scores,
)
from quicksilver.errors import EngineDied, EngineOverloaded, EngineUnavailable, QuicksilverError, Unavailable
from quicksilver.worker.client import RemoteEngine, WorkerTimeouts
from quicksilver.worker.pending import AnswerSoFar

log = logging.getLogger("quicksilver.cluster")

# Bytes of a token id in the hash of a prompt.
ID_BYTES = 4
# Seconds that a request waits for a replica that takes it. A model without replicas is started meanwhile.
ACCEPT_S = 30.0
# Requests of this process that may wait for a replica; further ones are refused, with this retry delay.
MAX_WAITING, FULL_RETRY_S = 1024, 5.0
# Seconds between two questions to Ray for replicas that are not known yet.
POLL_S = 1.0


async def open_connection(replica: messages.ReplicaInfo) -> ReplicaConnection:
    """Raises EngineUnavailable if the replica cannot be reached."""
    connection = ReplicaConnection(replica)
    try:
        await connection.start()
    finally:
        if not connection.is_ready:
            await connection.close()
    return connection


class ClusterEngine:
    """`handle` is the deployment's handle. `start` before use."""

    def __init__(
        self,
        handle: Any,
        connect: Callable[[messages.ReplicaInfo], Awaitable[ReplicaConnection]] = open_connection,
    ) -> None:
        self._handle = handle
        self._connect = connect
        self._replicas: dict[str, ReplicaConnection] = {}
        # Requests that wait for a replica, the oldest first.
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._polling: asyncio.Task[None] | None = None
        self._info: EngineInfo | None = None
        self._num_migrations = 0
        self._is_closed = False

    async def start(self) -> ClusterEngine:
        """Returns when a replica is connected."""
        await self._find_one()
        self._polling = asyncio.create_task(self._poll())
        return self

    async def _poll(self) -> None:
        """Connects to new replicas, and again to those whose connection ended."""
        while True:
            await asyncio.sleep(POLL_S)
            # A task of its own: Ray may cancel the call, which must not end this loop.
            finding = asyncio.ensure_future(self._find_one())
            try:
                await asyncio.wait({finding}, timeout=messages.SILENT_S)
            finally:
                finding.cancel()
            if finding.done() and not finding.cancelled() and (error := finding.exception()) is not None:
                log.warning("no connection to a replica: %s", error or type(error).__name__)

    async def _find_one(self) -> None:
        """Asks a replica for its address, one without a connection if there is one, and connects to it."""
        ended = [name for name, each in self._replicas.items() if not each.is_ready]
        for name in ended:
            await self._replicas.pop(name).close()
        found = messages.decode_info(await self._handle.describe.remote(list(self._replicas)))
        if found.replica in self._replicas:
            return
        connection = await self._connect(found)
        self._info = connection.info
        self._replicas[connection.name] = connection
        self._wake(len(self._waiting))

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineUnavailable("no replica has answered yet")
        return self._info

    @property
    def is_ready(self) -> bool:
        return any(each.is_ready for each in self._replicas.values()) and not self._is_closed

    def health(self) -> EngineHealth:
        if self._is_closed:
            return EngineHealth(EngineState.CLOSED)
        return EngineHealth(EngineState.READY if self.is_ready else EngineState.STARTING, stats=self._sum())

    async def stats(self) -> EngineStats:
        """The sum over all replicas, as they last reported it."""
        return self._sum()

    def _sum(self) -> EngineStats:
        found = [each.health().stats for each in self._replicas.values() if each.is_ready]
        totals = {field.name: sum(getattr(stats, field.name) for stats in found) for field in fields(EngineStats)}
        return replace(EngineStats(**totals), migrations=totals["migrations"] + self._num_migrations)

    async def close(self) -> None:
        self._is_closed = True
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        await asyncio.gather(*(each.close() for each in self._replicas.values()))

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        answer, failover, current, fingerprint = AnswerSoFar(request), Failover(request.id), request, ""
        keys = prompt_keys(request, self.info.page_size)
        failure: ReplicaLost | Unavailable
        while True:
            name = ""
            try:
                replica = await self._choose(keys, failover.avoided)
                name = replica.name
                fingerprint = _checked(replica, fingerprint if answer.has_tokens else "")
                with self._counted(replica):
                    async with aclosing(_events(replica, current)) as events:
                        async for event in events:
                            if isinstance(event, Delta):
                                answer.add(event)
                                failover.advance()
                            yield event if current is request else replace(event, request_id=request.id)
                            if isinstance(event, Delta) and event.finish is not None:
                                return
            except EngineDied:
                raise
            except (ReplicaLost, Unavailable) as error:
                failure = error
            self._log_failure(failure, name)
            await failover.wait(failure, name, has_begun=answer.has_tokens)
            if isinstance(failure, ReplicaLost):
                answer.interrupt()
                self._num_migrations += 1
            is_new = not (answer.has_tokens or failover.num_lost)
            current = replace(request, id=failover.attempt_id) if is_new else answer.continued(failover.attempt_id)

    async def score(self, request: ScoreRequest) -> Scores:
        """Computed again at another replica if one is lost."""
        failover = Failover(request.id)
        keys = prompt_keys(request, self.info.page_size)
        failure: ReplicaLost | Unavailable
        while True:
            name = ""
            current = replace(request, id=failover.attempt_id, is_continued=failover.num_lost > 0)
            try:
                replica = await self._choose(keys, failover.avoided)
                name = replica.name
                with self._counted(replica):
                    scores = await replica.score(current)
                usage = replace(scores.usage, migrated=scores.usage.migrated + failover.num_lost)
                return replace(scores, usage=usage)
            except EngineDied as error:
                failure = ReplicaLost(error.message)
            except Unavailable as error:
                failure = error
            self._log_failure(failure, name)
            await failover.wait(failure, name, has_begun=False)
            self._num_migrations += isinstance(failure, ReplicaLost)

    async def _choose(self, keys: list[bytes], avoided: list[str]) -> ReplicaConnection:
        """The best replica that takes requests. Waits for one."""
        found = self._best(keys, avoided)
        if found is None and len(self._waiting) >= MAX_WAITING:
            raise EngineOverloaded("all replicas are full; retry later", retry_after_s=FULL_RETRY_S)
        try:
            async with asyncio.timeout(ACCEPT_S):
                while found is None:
                    self._waiting.append(woken := asyncio.get_running_loop().create_future())
                    await woken
                    found = self._best(keys, avoided)
        except TimeoutError:
            raise EngineUnavailable("no replica is free; retry shortly", retry_after_s=FULL_RETRY_S) from None
        finally:
            if found is None:
                # This request may have been woken for a place that it no longer needs, so it wakes the next one.
                self._wake(1)
        return found

    def _best(self, keys: list[bytes], avoided: list[str]) -> ReplicaConnection | None:
        free = {name: each for name, each in self._replicas.items() if each.takes_requests}
        names = rank(keys, [Replica(name, each.num_open) for name, each in free.items()], os.urandom(8))
        # Of the avoided replicas, the first of the list is the best.
        names.sort(key=lambda name: avoided.index(name) if name in avoided else -1)
        return free[names[0]] if names else None

    @contextmanager
    def _counted(self, replica: ReplicaConnection) -> Iterator[None]:
        replica.num_open += 1
        try:
            yield
        finally:
            replica.num_open -= 1
            self._wake(1)

    def _wake(self, num_requests: int) -> None:
        while num_requests and self._waiting:
            woken = self._waiting.popleft()
            if not woken.done():
                woken.set_result(None)
                num_requests -= 1

    def _log_failure(self, error: Exception, replica: str) -> None:
        log.warning("a request failed at a replica: %s", error, extra={"replica": replica})


async def _events(replica: ReplicaConnection, request: Request) -> AsyncGenerator[Event, None]:
    """Raises ReplicaLost if another replica can continue the request."""
    has_events = False
    try:
        async with aclosing(replica.stream(request)) as events:
            async for event in events:
                has_events = True
                yield event
    except Unavailable as error:
        if has_events or isinstance(error, EngineDied):
            raise ReplicaLost(error.message) from None
        raise


def _checked(replica: ReplicaConnection, fingerprint: str) -> str:
    """The fingerprint of the replica. Raises EngineDied if that of the replica which began the answer is another."""
    if fingerprint and replica.info.fingerprint != fingerprint:
        raise EngineDied("the model was replaced under this request; retry")
    return replica.info.fingerprint


def prompt_keys(request: Request | ScoreRequest, page_size: int) -> list[bytes]:
    """The keys of `affinity.rank`: the leading pages of the prompt, within its tenant and adapter."""
    leading = request.prompt_ids[: PREFIX_PAGES[0] * page_size]
    content = b"".join(token.to_bytes(ID_BYTES, "little") for token in leading)
    # The KV of a prompt depends on the adapter, so the same prompt with another one shares no page.
    salt = f"{request.tenant}\n{request.adapter.id}" if request.adapter is not None else request.tenant
    key = prefix_key(salt.encode(), content, page_size * ID_BYTES)
    return [key] if key is not None else []


class ReplicaConnection(RemoteEngine):
    """The engine of one replica, over a TCP connection that carries all requests of this process.

    `start` returns when the connection is open; raises EngineUnavailable if it cannot be opened. The replica sends
    heartbeats. If it sends nothing for `SILENT_S`, or the connection ends, open requests fail with EngineDied, and
    `ClusterEngine` continues them at another replica.
    """

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
