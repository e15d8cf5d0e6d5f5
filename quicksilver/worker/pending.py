"""Requests that wait for an answer of the engine worker, with the state that continues them in another worker.

A request is continued from its prompt and committed tokens, so its text and its charge are those of an undisturbed run.
It is continued at most `MAX_MIGRATIONS` times. Requests that were in the step in which a worker ended run alone in the
next one until they advance; a request that ends two workers in this way is failed, and the others continue.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import replace

from quicksilver.core import Delta, Event, Request, ResumePoint, ScoreRequest, Scores
from quicksilver.errors import EngineDied, QuicksilverError, RowFailed
from quicksilver.worker import protocol
from quicksilver.worker.mailbox import Mailbox

MAX_MIGRATIONS = 3
# Workers in a row that a request ends while no other request is in the step.
MAX_WORKERS_ENDED = 2


class PendingRequest(ABC):
    def __init__(self, request_id: str) -> None:
        self.id = request_id
        self.num_interrupted = 0
        # The request was in a fatal step and has not advanced since.
        self.is_suspect = False
        # Workers in a row that ended while this request alone was in the step.
        self.num_ended_alone = 0

    @property
    @abstractmethod
    def is_finished(self) -> bool: ...

    @abstractmethod
    def command(self) -> protocol.Command:
        """Starts the request, or continues it."""

    @abstractmethod
    def fail(self, error: Exception) -> None: ...

    def interrupt(self, in_step: Collection[str]) -> QuicksilverError | None:
        """Records that the worker ended in a step with these requests. Returns an error if this one cannot continue."""
        self.num_interrupted += 1
        if self.id in in_step:
            self.is_suspect = True
            self.num_ended_alone += len(in_step) == 1
        if self.num_ended_alone >= MAX_WORKERS_ENDED:
            return RowFailed(f"{MAX_WORKERS_ENDED} engine workers ended while they computed this request")
        if self.num_interrupted > MAX_MIGRATIONS:
            return EngineDied(f"the engine worker died under this request {self.num_interrupted} times; retry")
        return None

    def _advanced(self) -> None:
        self.is_suspect = False
        self.num_ended_alone = 0


class AnswerSoFar:
    """What has arrived of an answer, from which another engine can continue it."""

    def __init__(self, request: Request) -> None:
        start = request.resume or ResumePoint()
        self._request = request
        self._num_migrated = start.usage.migrated
        self._tokens = list(start.token_ids)
        self._canvas = start.canvas
        self._usage = start.usage

    def add(self, delta: Delta) -> None:
        self._tokens += delta.token_ids
        self._canvas = delta.canvas
        self._usage = delta.usage or self._usage

    def continued(self, num_interrupted: int, *, runs_alone: bool = False) -> Request:
        """The request for the rest of the answer, after this many interruptions."""
        usage = replace(self._usage, migrated=self._num_migrated + num_interrupted)
        point = ResumePoint(tuple(self._tokens), self._canvas, usage)
        return replace(self._request, resume=point, runs_alone=runs_alone)


class PendingStream(PendingRequest):
    def __init__(self, request: Request) -> None:
        super().__init__(request.id)
        self.mailbox = Mailbox()
        self._request = request
        self._answer = AnswerSoFar(request)

    @property
    def is_finished(self) -> bool:
        return self.mailbox.is_finished

    def put(self, event: Event) -> None:
        if isinstance(event, Delta):
            self._advanced()
            self._answer.add(event)
        self.mailbox.put(event)

    def command(self) -> protocol.Command:
        if not self.num_interrupted:
            return protocol.Submit(self._request)
        return protocol.Submit(self._answer.continued(self.num_interrupted, runs_alone=self.is_suspect))

    def fail(self, error: Exception) -> None:
        self.mailbox.fail(error)


class PendingScore(PendingRequest):
    """Scores are computed again from the beginning."""

    def __init__(self, request: ScoreRequest) -> None:
        super().__init__(request.id)
        self.future: asyncio.Future[Scores] = asyncio.get_running_loop().create_future()
        self._request = request

    @property
    def is_finished(self) -> bool:
        return self.future.done() and not self.future.cancelled()

    def command(self) -> protocol.Command:
        return protocol.Score(replace(self._request, runs_alone=self.is_suspect))

    def resolve(self, scores: Scores) -> None:
        if not self.future.done():
            usage = replace(scores.usage, migrated=self.num_interrupted)
            self.future.set_result(replace(scores, usage=usage))

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
