"""ClusterEngine: an EngineClient whose engines are the replicas of a Ray Serve deployment.

A request goes to the replica that its prompt's leading pages select (`routing.affinity`). If the replica dies, is
drained, or sends nothing for `SILENT_S`, the request continues at another replica with the same model, from its prompt
and committed tokens: the same text, and the client sees a pause. The old replica gets an abort in case it still works.
Only the API process counts and charges, so nothing is sent or charged twice. A request of which no token has arrived is
tried at one other replica if the first one refuses it (`failover.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass, fields, replace
from typing import Any

from quicksilver.adapters import AdapterRef
from quicksilver.cluster.ray import messages
from quicksilver.cluster.ray.failover import Failover, ReplicaLost
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
from quicksilver.errors import EngineDied, EngineOverloaded, EngineUnavailable, Unavailable
from quicksilver.worker import protocol
from quicksilver.worker.pending import AnswerSoFar

log = logging.getLogger("quicksilver.cluster")

# Bytes of a token id in the hash of a prompt.
ID_BYTES = 4
# From the request to the first reply of a replica. A model without replicas is being started meanwhile.
ACCEPT_S = 30.0
# If a timer of this process fires this late, the process was busy, and the silence of a replica is not held against it.
BUSY_S = 0.5
# Each replica is asked about this often for its figures, and forgotten if it has not answered for a while.
POLL_S, FORGET_S = 1.0, 15.0
# Retry delay of a request that finds all replicas and the queue of this process full.
FULL_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class CallErrors:
    """Exceptions of a call: it has lost its replica, or was refused because the queue is full."""

    lost: tuple[type[Exception], ...]
    full: tuple[type[Exception], ...] = ()


class ClusterEngine:
    """`handle` is the deployment's handle, `errors` what its calls raise. `start` before use."""

    def __init__(self, handle: Any, errors: CallErrors) -> None:
        self._handle = handle
        # Of each replica, when it last described itself and what it reported then.
        self._figures: dict[str, tuple[float, EngineStats]] = {}
        self._polling: asyncio.Task[None] | None = None
        self._errors = errors
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
            # A task of its own: Ray may cancel the call, which must not end this loop.
            asking = asyncio.ensure_future(self._ask_one())
            try:
                await asyncio.wait({asking}, timeout=messages.SILENT_S)
            finally:
                asking.cancel()
            if asking.done() and not asking.cancelled() and (error := asking.exception()) is not None:
                log.warning("a replica did not describe itself: %s", type(error).__name__)
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
        answer, failover, current, fingerprint = AnswerSoFar(request), Failover(request.id), request, ""
        keys = prompt_keys(request, self.info.page_size)
        failure: ReplicaLost | Unavailable
        while True:
            attempt = _Attempt(self._handle, protocol.Submit(current), keys, failover.avoided, self._errors)
            try:
                async for event in attempt.events(fingerprint):
                    if isinstance(event, Delta):
                        answer.add(event)
                        failover.advance()
                    yield event if current is request else replace(event, request_id=request.id)
                    if isinstance(event, Delta) and event.finish is not None:
                        return
            except EngineDied:
                raise
            except (ReplicaLost, Unavailable) as error:
                failure = error if not attempt.has_events else ReplicaLost(str(error))
            finally:
                await attempt.close()
            self._log_failure(failure, attempt.replica)
            await failover.wait(failure, attempt.replica, has_begun=answer.has_tokens)
            if isinstance(failure, ReplicaLost):
                answer.interrupt()
                self._num_migrations += 1
            if answer.has_tokens:
                fingerprint = fingerprint or attempt.fingerprint
            is_new = not (answer.has_tokens or failover.num_lost)
            current = replace(request, id=failover.attempt_id) if is_new else answer.continued(failover.attempt_id)

    async def score(self, request: ScoreRequest) -> Scores:
        """Computed again at another replica if one is lost."""
        failover = Failover(request.id)
        keys = score_keys(request, self.info.page_size)
        failure: ReplicaLost | Unavailable
        while True:
            current = replace(request, id=failover.attempt_id, is_continued=failover.num_lost > 0)
            attempt = _Attempt(self._handle, protocol.Score(current), keys, failover.avoided, self._errors)
            try:
                scores = await attempt.scores()
                usage = replace(scores.usage, migrated=scores.usage.migrated + failover.num_lost)
                return replace(scores, usage=usage)
            except (ReplicaLost, Unavailable) as error:
                failure = error
            finally:
                await attempt.close()
            self._log_failure(failure, attempt.replica)
            await failover.wait(failure, attempt.replica, has_begun=False)
            self._num_migrations += isinstance(failure, ReplicaLost)

    def _log_failure(self, error: Exception, replica: str) -> None:
        log.warning("a request failed at a replica: %s", error, extra={"replica": replica})


class _Attempt:
    """One request at one replica."""

    def __init__(
        self,
        handle: Any,
        command: protocol.Submit | protocol.Score,
        keys: list[bytes],
        avoided: list[str],
        errors: CallErrors,
    ) -> None:
        self.replica = self.fingerprint = ""
        self.has_events = False
        self._errors = errors
        self._handle = handle
        self._request_id = command.request.id
        self._is_finished = False
        self._replies = handle.options(stream=True).stream.remote(messages.encode(command), keys, list(avoided))

    async def events(self, fingerprint: str) -> AsyncGenerator[Event, None]:
        """Raises ReplicaLost, and the errors of the engine itself. `fingerprint` is that of the replica which began the
        answer; empty if none did."""
        async for reply in self._results(fingerprint):
            if isinstance(reply, protocol.GotEvents):
                events: list[Event] = [*reply.deltas, *reply.frames]
                for event in events:
                    self.has_events = True
                    self._is_finished = isinstance(event, Delta) and event.finish is not None
                    yield event

    async def scores(self) -> Scores:
        """Raises as `events` does."""
        async for reply in self._results(""):
            if isinstance(reply, protocol.GotScores):
                self._is_finished = True
                return reply.scores
        raise AssertionError("unreachable: _results ends with an exception")

    async def _results(self, fingerprint: str) -> AsyncGenerator[protocol.Reply, None]:
        """Replies of the engine. Ends with an exception."""
        while (reply := await self._next()) is not None:
            if isinstance(reply, messages.Accepted):
                self.replica, self.fingerprint = reply.replica, reply.fingerprint
                if fingerprint and reply.fingerprint != fingerprint:
                    raise EngineDied("the model was replaced under this request; retry")
            elif isinstance(reply, protocol.Refused):
                self._is_finished = True
                error = protocol.to_error(reply)
                raise ReplicaLost(error.message) if isinstance(error, EngineDied) else error
            else:
                yield reply
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
        except self._errors.full:
            raise EngineOverloaded("all replicas are full; retry later", retry_after_s=FULL_RETRY_S) from None
        except self._errors.lost as error:
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
                self._handle.abort.remote(self._request_id, [], [], self.replica)


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
    """The keys of `affinity.rank`: the leading pages of the prompt, within its tenant and adapter."""
    return _pages_keys(request.tenant, request.adapter, request.prompt_ids, page_size)


def score_keys(request: ScoreRequest, page_size: int) -> list[bytes]:
    """As `prompt_keys`."""
    return _pages_keys(request.tenant, request.adapter, request.prompt_ids, page_size)


def _pages_keys(tenant: str, adapter: AdapterRef | None, ids: tuple[int, ...], page_size: int) -> list[bytes]:
    leading = ids[: PREFIX_PAGES[0] * page_size]
    content = b"".join(token.to_bytes(ID_BYTES, "little") for token in leading)
    # The KV of a prompt depends on the adapter, so the same prompt with another one shares no page.
    salt = f"{tenant}\n{adapter.id}" if adapter is not None else tenant
    key = prefix_key(salt.encode(), content, page_size * ID_BYTES)
    return [key] if key is not None else []
