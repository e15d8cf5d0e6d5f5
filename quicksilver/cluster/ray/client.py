"""ClusterEngine: an EngineClient whose engines are the replicas of a Ray Serve deployment.

A request goes to the replica that its prompt's leading pages select (`routing.affinity`). If the replica dies, is
drained, or sends nothing for `SILENT_S`, the request continues at another replica with the same model, from its prompt
and committed tokens: the same text, and the client sees a pause. The old replica gets an abort in case it still works.
Only the API process counts and charges, so nothing is sent or charged twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator
from dataclasses import fields, replace
from typing import Any

from quicksilver.cluster.ray import messages
from quicksilver.cluster.routing.affinity import PREFIX_PAGES, prefix_key
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
from quicksilver.errors import EngineDied, EngineUnavailable
from quicksilver.worker import protocol
from quicksilver.worker.pending import MAX_MIGRATIONS, AnswerSoFar

log = logging.getLogger("quicksilver.cluster")

# Bytes of a token id in the hash of a prompt.
ID_BYTES = 4
# From the request to the first reply of a replica. A model without replicas is being started meanwhile.
ACCEPT_S = 30.0
# Delay of a timer of this process beyond which its own silence does not count.
BUSY_S = 0.5
# Each replica is asked about this often for its figures, and forgotten if it has not answered for a while.
POLL_S, FORGET_S = 1.0, 15.0


class ReplicaLost(Exception):
    """The replica cannot continue this request; another one can."""


class ClusterEngine:
    """`handle` is the deployment's handle; a call that raises one of `lost_errors` has lost its replica. `start` before
    use."""

    def __init__(self, handle: Any, lost_errors: tuple[type[Exception], ...]) -> None:
        self._handle = handle
        # Of each replica, when it last described itself and what it reported then.
        self._figures: dict[str, tuple[float, EngineStats]] = {}
        self._polling: asyncio.Task[None] | None = None
        self._lost_errors = lost_errors
        self._info: EngineInfo | None = None
        self._num_migrations = 0
        self._is_closed = False

    async def start(self) -> ClusterEngine:
        """Returns when a replica answers."""
        await self._ask_one()
        self._polling = asyncio.create_task(self._poll())
        return self

    async def _poll(self) -> None:
        """Asks one replica after another, in random order; replicas that are gone are forgotten."""
        while True:
            await asyncio.sleep(POLL_S / max(len(self._figures), 1))
            with contextlib.suppress(TimeoutError, *self._lost_errors):
                async with asyncio.timeout(messages.SILENT_S):
                    await self._ask_one()
            oldest = asyncio.get_running_loop().time() - FORGET_S
            self._figures = {name: each for name, each in self._figures.items() if each[0] > oldest}

    async def _ask_one(self) -> None:
        body = await self._handle.describe.remote(b"", [os.urandom(8)], [])
        described = messages.decode_info(body)
        self._info = described.info
        self._figures[described.replica] = (asyncio.get_running_loop().time(), described.stats)

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineUnavailable("no replica has answered yet")
        return self._info

    @property
    def is_ready(self) -> bool:
        return bool(self._figures) and not self._is_closed

    def health(self) -> EngineHealth:
        if self._is_closed:
            return EngineHealth(EngineState.CLOSED)
        return EngineHealth(EngineState.READY if self.is_ready else EngineState.STARTING, stats=self._sum())

    async def stats(self) -> EngineStats:
        """The sum over all replicas, as they last reported it."""
        return self._sum()

    def _sum(self) -> EngineStats:
        found = [stats for _, stats in self._figures.values()]
        totals = {field.name: sum(getattr(stats, field.name) for stats in found) for field in fields(EngineStats)}
        return replace(EngineStats(**totals), migrations=totals["migrations"] + self._num_migrations)

    async def close(self) -> None:
        self._is_closed = True
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        answer, avoided, current, num_interrupted = AnswerSoFar(request), list[str](), request, 0
        fingerprint = ""
        while True:
            keys = prompt_keys(request, self.info.page_size)
            attempt = _Attempt(self._handle, current, keys, avoided, self._lost_errors)
            try:
                async for event in attempt.events(fingerprint):
                    if isinstance(event, Delta):
                        answer.add(event)
                    yield event if current is request else replace(event, request_id=request.id)
                    if isinstance(event, Delta) and event.finish is not None:
                        return
            except ReplicaLost as error:
                num_interrupted += 1
                if num_interrupted > MAX_MIGRATIONS:
                    raise EngineDied(f"{num_interrupted} replicas were lost under this request; retry") from None
                log.warning("continuing a request elsewhere: %s", error, extra={"replica": attempt.replica})
            finally:
                await attempt.close()
            self._num_migrations += 1
            fingerprint = fingerprint or attempt.fingerprint
            avoided.append(attempt.replica)
            # Under an id of its own: an abort of the lost attempt may still be on its way to the same replica.
            current = replace(answer.continued(num_interrupted), id=f"{request.id}~{num_interrupted}")

    async def score(self, request: ScoreRequest) -> Scores:
        """Computed again at another replica if one is lost."""
        command = messages.encode(protocol.Score(request))
        keys, avoided = [_pages_key(request.tenant, request.prompt_ids, self.info.page_size)], list[str]()
        for _ in range(MAX_MIGRATIONS + 1):
            try:
                body = await self._handle.score.remote(command, [key for key in keys if key], avoided)
            except self._lost_errors as error:
                log.warning("scoring again elsewhere: %s", type(error).__name__)
                continue
            reply = messages.decode_reply(body)
            if isinstance(reply, protocol.Refused):
                raise protocol.to_error(reply)
            assert isinstance(reply, protocol.GotScores)
            return reply.scores
        raise EngineDied("no replica could score this request; retry")


class _Attempt:
    """One request at one replica."""

    def __init__(
        self,
        handle: Any,
        request: Request,
        keys: list[bytes],
        avoided: list[str],
        lost_errors: tuple[type[Exception], ...],
    ) -> None:
        self.replica = self.fingerprint = ""
        self._lost_errors = lost_errors
        self._handle = handle
        self._request = request
        self._is_finished = False
        self._replies = handle.options(stream=True).stream.remote(
            messages.encode(protocol.Submit(request)), keys, list(avoided)
        )

    async def events(self, fingerprint: str) -> AsyncGenerator[Event, None]:
        """Raises ReplicaLost, and the errors of the engine itself. `fingerprint` is that of the replica which began the
        answer; empty if none did."""
        while (reply := await self._next()) is not None:
            if isinstance(reply, messages.Accepted):
                self.replica, self.fingerprint = reply.replica, reply.fingerprint
                if fingerprint and reply.fingerprint != fingerprint:
                    raise EngineDied("the model was replaced under this request; retry")
            elif isinstance(reply, protocol.GotEvents):
                events: list[Event] = [*reply.deltas, *reply.frames]
                for event in events:
                    self._is_finished = isinstance(event, Delta) and event.finish is not None
                    yield event
            elif isinstance(reply, protocol.Refused):
                self._is_finished = True
                error = protocol.to_error(reply)
                if isinstance(error, EngineDied):
                    raise ReplicaLost(error.message)
                raise error
        raise ReplicaLost("its stream ended early")

    async def _next(self) -> messages.StreamReply | None:
        reading = asyncio.ensure_future(_read(self._replies))
        try:
            if not await _is_done_within(reading, messages.SILENT_S if self.replica else ACCEPT_S):
                if not self.replica:
                    raise EngineUnavailable("no replica is free; retry shortly", retry_after_s=5.0)
                raise ReplicaLost("it sends nothing")
            if reading.cancelled():
                # Ray cancels its own call if the replica is lost while it is being chosen.
                raise ReplicaLost("the call was cancelled")
            return messages.decode_reply(reading.result())
        except StopAsyncIteration:
            return None
        except self._lost_errors as error:
            raise ReplicaLost(type(error).__name__) from None
        finally:
            reading.cancel()

    async def close(self) -> None:
        if self._is_finished:
            return
        self._replies.cancel()
        # The cancellation is best effort.
        if self.replica:
            with contextlib.suppress(Exception):
                self._handle.abort.remote(self._request.id, [], [], self.replica)


async def _read(replies: Any) -> bytes:
    body: bytes = await anext(replies)
    return body


async def _is_done_within(reading: asyncio.Future[bytes], limit_s: float) -> bool:
    """Whether the reply came in time. If this process itself was busy or stopped meanwhile, it has some time more."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    await asyncio.wait({reading}, timeout=limit_s)
    if not reading.done() and loop.time() - started > limit_s + BUSY_S:
        await asyncio.wait({reading}, timeout=limit_s)
    return reading.done()


def prompt_keys(request: Request, page_size: int) -> list[bytes]:
    """The keys of `affinity.rank`: the leading pages of the prompt, within its tenant."""
    key = _pages_key(request.tenant, request.prompt_ids, page_size)
    return [key] if key is not None else []


def _pages_key(tenant: str, ids: tuple[int, ...], page_size: int) -> bytes | None:
    leading = ids[: PREFIX_PAGES[0] * page_size]
    content = b"".join(token.to_bytes(ID_BYTES, "little") for token in leading)
    return prefix_key(tenant.encode(), content, page_size * ID_BYTES)
