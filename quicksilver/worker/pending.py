"""Requests that wait for an answer of the engine worker, with the state that continues them in another worker.

A request is continued from its prompt and committed tokens, so its text and its charge are those of an undisturbed run.
It is continued at most `MAX_MIGRATIONS` times. Requests in the last step of a worker that crashed run alone in the next
one until they advance. A request that crashes two workers in a row while it runs alone is failed, and the others
continue. Crashes that another request caused while it ran alone do not count towards `MAX_MIGRATIONS`.
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
        # Interruptions without those that another request caused alone.
        self._num_unexplained = 0
        # The request was in a fatal step and has not advanced since.
        self.is_suspect = False
        # Workers in a row that ended while this request alone was in the step.
        self.num_ended_alone = 0

    @property
    def wire_id(self) -> str:
        """The id in the worker. It is a new one after each interruption: the worker may still be ending the request
        under the old one."""
        return f"{self.id}#{self.num_interrupted}" if self.num_interrupted else self.id

    @property
    @abstractmethod
    def is_finished(self) -> bool: ...

    @abstractmethod
    def command(self) -> protocol.Command:
        """Starts the request, or continues it."""

    @abstractmethod
    def fail(self, error: Exception) -> None: ...

    def interrupt(self, in_step: Collection[str]) -> QuicksilverError | None:
        """Records that the worker ended in a step with the requests of these wire ids. Returns an error if this one
        cannot continue."""
        is_in_step = self.wire_id in in_step
        self.num_interrupted += 1
        self._num_unexplained += is_in_step or len(in_step) != 1
        if is_in_step:
            self.is_suspect = True
            self.num_ended_alone += len(in_step) == 1
        if self.num_ended_alone >= MAX_WORKERS_ENDED:
            return RowFailed(f"{MAX_WORKERS_ENDED} engine workers ended while they computed this request")
        if self._num_unexplained > MAX_MIGRATIONS:
            return EngineDied(f"the engine worker died under this request {self._num_unexplained} times; retry")
        return None

    def _advanced(self) -> None:
        self.is_suspect = False
        self.num_ended_alone = 0


class AnswerSoFar:
    """What has arrived of an answer, from which another engine can continue it."""

    def __init__(self, request: Request) -> None:
        start = request.resume or ResumePoint()
        self._request = request
        self._tokens = list(start.token_ids)
        self._canvas = start.canvas
        self._usage = start.usage

    @property
    def has_tokens(self) -> bool:
        return bool(self._tokens)

    def add(self, delta: Delta) -> None:
        self._tokens += delta.token_ids
        self._canvas = delta.canvas
        if delta.usage is not None:
            # The engine counts interruptions of its own on top of those that it was told of.
            self._usage = replace(delta.usage, migrated=max(delta.usage.migrated, self._usage.migrated))

    def interrupt(self) -> None:
        """Counts an interruption."""
        self._usage = replace(self._usage, migrated=self._usage.migrated + 1)

    def continued(self, request_id: str, *, runs_alone: bool = False) -> Request:
        """The request for the rest of the answer, under another id."""
        point = ResumePoint(tuple(self._tokens), self._canvas, self._usage)
        return replace(self._request, id=request_id, resume=point, runs_alone=runs_alone)


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
            # Tokens that the grammar determines come before the first forward.
            if len(event.token_ids) > event.num_forced:
                self._advanced()
            self._answer.add(event)
        self.mailbox.put(replace(event, request_id=self.id) if self.num_interrupted else event)

    def interrupt(self, in_step: Collection[str]) -> QuicksilverError | None:
        self._answer.interrupt()
        return super().interrupt(in_step)

    def command(self) -> protocol.Command:
        if not self.num_interrupted:
            return protocol.Submit(self._request)
        return protocol.Submit(self._answer.continued(self.wire_id, runs_alone=self.is_suspect))

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
        if not self.num_interrupted:
            return protocol.Score(self._request)
        return protocol.Score(
            replace(self._request, id=self.wire_id, runs_alone=self.is_suspect, is_continued=True),
        )

    def resolve(self, scores: Scores) -> None:
        if not self.future.done():
            usage = replace(scores.usage, migrated=scores.usage.migrated + self.num_interrupted)
            self.future.set_result(replace(scores, usage=usage))

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
