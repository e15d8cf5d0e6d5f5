"""The engine: add requests, call `step` until nothing is left. One thread, no I/O, no clock but the grammars' meter.

`step` is the whole story: schedule, forward, commit, emit. A request that fails does so alone; what it shared a forward
with is not touched. Only `prepare` may be called from other threads: a new grammar takes long to build.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from quicksilver.backends.base import Backend, Outcome, Work
from quicksilver.backends.sequence import Sequence
from quicksilver.core import (
    ConstraintSpec,
    Delta,
    EngineInfo,
    EngineStats,
    Event,
    FinishReason,
    Request,
    ScoreRequest,
    Scores,
    TokenConstraint,
)
from quicksilver.diffusion.decoders import make_decoder
from quicksilver.diffusion.score import Scorer, score_continuations
from quicksilver.diffusion.verify import agreement
from quicksilver.engine.admission import check_request, check_score
from quicksilver.engine.commit import begin, commit
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.grammar_budget import Meter, Metered, excess_of
from quicksilver.engine.pages import PagePool, prefix_hashes
from quicksilver.engine.scheduler import Scheduler
from quicksilver.errors import EngineUnavailable, InvalidGrammar, QuicksilverError, RowFailed

ConstraintFactory = Callable[[ConstraintSpec], TokenConstraint]


@dataclass(frozen=True, slots=True)
class Scored:
    """The answer to a ScoreRequest, among the events of a step."""

    request_id: str
    scores: Scores


StepEvent = Event | Scored


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is ready to be queued, and what is known of its answer already."""

    sequence: Sequence
    events: tuple[Event, ...] = ()
    error: Exception | None = None
    """Why it will fail, alone."""


class Engine:
    def __init__(
        self,
        backend: Backend,
        info: EngineInfo,
        config: EngineConfig,
        constraints: ConstraintFactory | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.backend, self.info, self.config = backend, info, config
        self.constraints = constraints
        self.meter = meter or Meter()
        self.pool = PagePool(info.num_pages)
        self.scheduler = Scheduler(config, self.pool, backend.round_cost)
        self._sequences: dict[str, Sequence] = {}
        self._events: list[StepEvent] = []
        self._counts: Counter[str] = Counter()

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._events)

    def add(self, request: Request) -> None:
        """Queue a request; its events come out of later steps. Refuses what can never run."""
        self.enqueue(self.prepare(request))

    def prepare(self, request: Request) -> Prepared:
        """All that can be done before a request is queued: its grammar, and the text that this determines. Touches
        nothing that changes, so any thread may do it while the engine steps."""
        check_request(request, self.info, self.config)
        constraint = self._constraint(request)
        sequence = Sequence(request, make_decoder(request.params.decoder), constraint)
        try:
            events = tuple(begin(sequence))
            self._try_mask(sequence)
        except Exception as error:
            return Prepared(sequence, error=error)
        return Prepared(sequence, events)

    def _try_mask(self, sequence: Sequence) -> None:
        """The first bitmask, so that a grammar which takes long for it is known before it delays anybody."""
        if sequence.constraint is not None:
            excess_of(sequence.constraint)
            row = np.zeros((1, -(-self.info.vocab_size // 32)), dtype=np.int32)
            sequence.constraint.write_masks([], row.data)
            sequence.excess_s = excess_of(sequence.constraint)

    def enqueue(self, prepared: Prepared) -> None:
        self._enqueue(prepared.sequence)
        if prepared.error is not None:
            self._fail(prepared.sequence, prepared.error)
        for event in prepared.events:
            self._emit(event)

    def add_score(self, request: ScoreRequest) -> None:
        check_score(request, self.info, self.config)
        self.add_scorer(request, score_continuations(request.continuations))

    def add_scorer(self, request: ScoreRequest, scorer: Scorer) -> None:
        """Any other question about log-probabilities after `request.prompt_ids`."""
        stand_in = Request(request.id, request.prompt_ids, tenant=request.tenant)
        self._enqueue(Sequence(stand_in, scorer))

    def abort(self, request_id: str) -> None:
        """Forget a request, wherever it stands; its pages are free before the next step. Unknown ids are ignored."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._emit(Delta(request_id, finish=FinishReason.ABORT, usage=sequence.usage()))

    @torch.inference_mode()
    def step(self) -> list[StepEvent]:
        """One forward for everybody who can run; returns what became known."""
        self.meter.begin()
        works = self.scheduler.plan(self.meter.resting(list(self._sequences.values()))) or self.scheduler.plan()
        for work, outcome in self._forward(works):
            self._commit(work, outcome)
        self._count(works)
        self.meter.end(works)
        return self._drain()

    def stats(self) -> EngineStats:
        return EngineStats(
            **self._counts,
            running=len(self.scheduler.running),
            waiting=self.scheduler.num_waiting,
            free_pages=self.pool.num_free,
            cached_pages=self.pool.num_cached,
            preemptions=self.scheduler.num_preemptions,
        )

    def _enqueue(self, sequence: Sequence) -> None:
        if self.scheduler.num_waiting >= self.config.max_waiting:
            raise EngineUnavailable("the queue is full; retry shortly")
        self._sequences[sequence.id] = sequence
        self.scheduler.add(sequence)
        self._bump(requests=1, prompt_tokens=sequence.num_prompt)

    def _constraint(self, request: Request) -> Metered | None:
        if request.constraint is None:
            return None
        if self.constraints is None:
            raise InvalidGrammar("this engine was started without structured output", param="response_format")
        return Metered(self.constraints(request.constraint), self.meter.clock)

    def _forward(self, works: list[Work]) -> list[tuple[Work, Outcome | None]]:
        """Run the batch; if it raises, run each sequence alone, so that only the culprit fails."""
        if not works:
            return []
        try:
            return list(zip(works, self.backend.run(works), strict=True))
        except Exception:
            return [pair for work in works for pair in self._forward_alone(work)]

    def _forward_alone(self, work: Work) -> list[tuple[Work, Outcome | None]]:
        try:
            return [(work, self.backend.run([work])[0])]
        except Exception as error:
            self._fail(work.sequence, error)
            return []

    def _commit(self, work: Work, outcome: Outcome | None) -> None:
        sequence = work.sequence
        sequence.forwards += 1
        sequence.rows += work.num_rows
        if outcome is None:
            sequence.kv_len = work.end
        elif isinstance(sequence.decoder, Scorer):
            self._guarded(sequence, lambda: self._scored(sequence, outcome))
        else:
            self._remember(work, outcome)
            self._guarded(sequence, lambda: commit(work, outcome))
        self._publish(sequence)

    def _remember(self, work: Work, outcome: Outcome) -> None:
        """How much of a draft proved right, for the lengths of those to come."""
        if work.tail is not None and work.tail.is_causal:
            draft = work.tail.token_ids
            self.scheduler.memory.add(agreement(outcome.proposal.token_ids.tolist(), draft), len(draft))

    def _scored(self, sequence: Sequence, outcome: Outcome) -> list[StepEvent]:
        assert isinstance(sequence.decoder, Scorer)
        assert outcome.target_logprobs is not None
        if not bool(outcome.proposal.is_finite.all()):
            raise RowFailed("the model returned non-finite numbers for this request")
        self._remove(sequence)
        return [Scored(sequence.id, sequence.decoder.read(outcome.target_logprobs))]

    def _guarded(self, sequence: Sequence, work: Callable[[], list[Event] | list[StepEvent]]) -> None:
        """Emit what `work` returns; if it raises, the request fails alone."""
        try:
            events = work()
        except Exception as error:
            self._fail(sequence, error)
        else:
            for event in events:
                self._emit(event)

    def _publish(self, sequence: Sequence) -> None:
        """Full pages of final text become shareable."""
        if sequence.id not in self._sequences:
            return
        hashes = prefix_hashes(sequence, self.config.page_size, sequence.kv_len)
        for index in range(sequence.num_published, len(hashes)):
            self.pool.publish(sequence.pages[index], hashes[index])
        sequence.num_published = max(sequence.num_published, len(hashes))

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        code = error.code if isinstance(error, QuicksilverError) else RowFailed.code
        message = f"{code}: {error}" if isinstance(error, QuicksilverError) else f"{code}: {type(error).__name__}"
        self._emit(Delta(sequence.id, finish=FinishReason.ERROR, usage=sequence.usage(), error=message))

    def _emit(self, event: StepEvent) -> None:
        self._events.append(event)
        if isinstance(event, Delta):
            self._bump(generated_tokens=len(event.token_ids), forced_tokens=event.num_forced)
            if event.finish is not None:
                self._finish(event)

    def _finish(self, last: Delta) -> None:
        sequence = self._sequences[last.request_id]
        self._publish(sequence)
        self._remove(sequence)
        self._bump(
            cached_tokens=sequence.cached_tokens,
            drafted_tokens=sequence.drafted,
            accepted_tokens=sequence.accepted,
            aborts=last.finish is FinishReason.ABORT,
            failures=last.finish is FinishReason.ERROR,
        )

    def _remove(self, sequence: Sequence) -> None:
        del self._sequences[sequence.id]
        self.scheduler.remove(sequence)

    def _count(self, works: list[Work]) -> None:
        if works:
            self._bump(steps=1, rows=sum(work.num_rows for work in works))

    def _bump(self, **counts: int) -> None:
        for name, count in counts.items():
            self._counts[name] += count

    def _drain(self) -> list[StepEvent]:
        events, self._events = self._events, []
        return events
