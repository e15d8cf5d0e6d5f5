"""The engine: `add` requests, then call `step` until `has_work` is false. One thread, no I/O.

A step is: plan, forward, commit, emit. If one request fails, the others in the same forward are not affected. Only
`prepare` may be called from other threads, because a new grammar takes long to build.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from quicksilver.adapters import AdapterRef
from quicksilver.backends.base import Backend, Outcome, Sequence, Work
from quicksilver.core import (
    ConstraintSpec,
    DecodeParams,
    DecoderName,
    DecoderParams,
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
from quicksilver.dialect import AUTOREGRESSIVE, Dialect
from quicksilver.diffusion.decoder import Decision
from quicksilver.diffusion.decoders import decide_together, make_decoder
from quicksilver.diffusion.score import Scorer, score_continuations, score_next
from quicksilver.engine.adapter_cache import AdapterCache, Lease
from quicksilver.engine.admission import TenantLoad, check_request, check_score, check_scorer, in_dialect
from quicksilver.engine.commit import begin, commit, commit_scores
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.decode_slots import DecodeSlots
from quicksilver.engine.pages import PagePool
from quicksilver.engine.scheduler import Scheduler
from quicksilver.engine.step_limits import TimedConstraint, take_overrun_s
from quicksilver.errors import (
    ContextTooLong,
    EngineOverloaded,
    EngineUnavailable,
    InvalidGrammar,
    InvalidRequest,
    QuicksilverError,
    RowFailed,
)

log = logging.getLogger(__name__)

ConstraintFactory = Callable[[ConstraintSpec], TokenConstraint]


@dataclass(frozen=True, slots=True)
class Scored:
    """The result of a ScoreRequest, among the events of a step."""

    request_id: str
    scores: Scores


StepEvent = Event | Scored


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request with its grammar, ready to be queued, and the tokens that its grammar already determines."""

    sequence: Sequence
    events: tuple[Event, ...] = ()
    error: Exception | None = None  # the request is queued and fails with this error


class Engine:
    def __init__(
        self,
        backend: Backend,
        info: EngineInfo,
        config: EngineConfig,
        constraints: ConstraintFactory | None = None,
        dialect: Dialect = AUTOREGRESSIVE,
        adapters: AdapterCache | None = None,
    ) -> None:
        self.backend, self.info, self.config, self.dialect = backend, info, config, dialect
        self.constraints = constraints
        self._adapters = adapters
        self.pool = PagePool(info.num_pages)
        self.slots = _decode_slots(backend, self.pool, config)
        self.scheduler = Scheduler(config, self.pool, backend.round_cost, slots=self.slots)
        # Called before a forward with the ids of the requests in it, and after their commit with none.
        self.on_step: Callable[[list[str]], None] = lambda ids: None
        self._tenant_load = TenantLoad(config.max_tenant_rows, self.scheduler.tenants)
        self._sequences: dict[str, Sequence] = {}
        self._events: list[StepEvent] = []
        self._counts: Counter[str] = Counter()
        if backend.persistent is not None:
            backend.persistent.before_wait = self._launch_rounds  # a round is one decoding step of all slots

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._events)

    @torch.inference_mode()
    def step(self) -> list[StepEvent]:
        """One forward over the rows of all planned sequences. Returns the events that it produced."""
        self._refuse_overdue()
        works = self.scheduler.plan()
        self.on_step(self._ids_in_step(works))
        done = self._forward(works)
        self._commit_round()
        decisions = decide_together([(work.sequence, outcome.proposal) for work, outcome in done if outcome])
        for work, outcome in done:
            self._commit(work, outcome, decisions.get(work.sequence))
        self.on_step([])
        self.scheduler.finish(works)
        self._fail_impossible(works)
        return self._drain()

    def _ids_in_step(self, works: list[Work]) -> list[str]:
        in_slots = () if self.slots is None else self.slots.request_ids
        return [*(work.sequence.id for work in works), *in_slots]

    def _launch_rounds(self) -> None:
        """Queues rounds of the persistent batch. If the device refuses one, its sequences run in ordinary forwards."""
        if self.slots is None:
            return
        try:
            self.slots.launch()
        except Exception:
            log.exception("a decoding round could not be queued")
            self.slots.drop_rounds()

    def _commit_round(self) -> None:
        """Adds the tokens of the oldest round of the persistent batch."""
        self._launch_rounds()
        if self.slots is None or not self.slots.has_rounds:
            return
        try:
            found = self.slots.commit()
        except Exception:
            log.exception("a decoding round failed")
            self.slots.drop_rounds()
            return
        self._add_counts(steps=1, rows=found.num_sequences, generated_tokens=found.num_tokens)
        self._events += found.deltas
        for delta in found.deltas:
            if delta.finish is not None:
                self._finish(delta.request_id, delta.finish)
        for sequence in found.failed:
            self._fail(sequence, RowFailed("the model returned non-finite numbers for this request"))

    def warm_up(self) -> None:
        """Runs one short request that is not counted. It compiles CPU kernels that are not cached on this machine, so
        that the first real request does not wait for them."""
        decoder = replace(self.info.default_decoder, canvas_len=min(4, self.info.max_canvas_len), steps=2)
        self.add(Request("warm-up", (1, 2), DecodeParams(max_new_tokens=4, decoder=decoder)))
        while self.has_work:
            self.step()
        self._counts.clear()

    def add(self, request: Request) -> None:
        """Queues a request; later steps return its events. Raises if it can never run."""
        self.enqueue(self.prepare(request))

    def prepare(self, request: Request) -> Prepared:
        """Everything that can be done before a request is queued: checks, its grammar, the tokens that this determines.
        Reads no changing state of the engine, so any thread may call it while the engine steps."""
        request = in_dialect(request, self.dialect)
        check_request(request, self.info, self.dialect)
        lease = self._lease(request.adapter)
        constraint = self._constraint(request)
        decoder = make_decoder(request.params.decoder, self.dialect, request.params.seed)
        sequence = Sequence(
            request,
            decoder,
            constraint,
            dialect=self.dialect,
            adapter=lease.adapter if lease else None,
            adapter_lease=lease,
        )
        try:
            events = tuple(begin(sequence))
            self._measure_mask(sequence)
        except Exception as error:
            return Prepared(sequence, error=error)
        return Prepared(sequence, events)

    @property
    def adapters(self) -> AdapterCache:
        """Any thread may use it."""
        if self._adapters is None:
            raise InvalidRequest("this engine cannot apply adapters to single requests", param="model")
        return self._adapters

    def has_adapter(self, ref: AdapterRef) -> bool:
        """Whether `prepare` need not load this adapter."""
        return self._adapters is None or ref in self._adapters

    def _lease(self, ref: AdapterRef | None) -> Lease | None:
        return None if ref is None else self.adapters.lease(ref)

    def _constraint(self, request: Request) -> TimedConstraint | None:
        if request.constraint is None:
            return None
        if self.constraints is None:
            raise InvalidGrammar("this engine was started without structured output", param="response_format")
        return TimedConstraint(self.constraints(request.constraint), self.scheduler.grammar_budget.clock)

    def _measure_mask(self, sequence: Sequence) -> None:
        """Computes the first bitmask, so that a slow grammar is over budget before it delays any step."""
        if sequence.constraint is not None:
            take_overrun_s(sequence.constraint)
            row = np.zeros((1, -(-self.info.vocab_size // 32)), dtype=np.int32)
            sequence.constraint.write_masks([], row.data)
            sequence.overrun_s = take_overrun_s(sequence.constraint)

    def enqueue(self, prepared: Prepared) -> None:
        self._enqueue(prepared.sequence, is_continued=prepared.sequence.request.resume is not None)
        if prepared.error is not None:
            self._fail(prepared.sequence, prepared.error)
        for event in prepared.events:
            self._emit(event)

    def add_score(self, request: ScoreRequest) -> None:
        """Queues the scoring of `request.continuations`; a later step returns `Scored`."""
        check_score(request, self.info, self.config)
        max_rows = self.scheduler.score_pass_rows
        if request.next_tokens:
            scorer = score_next(request.continuations, request.next_tokens, max_rows)
        else:
            scorer = score_continuations(request.continuations, max_rows)
        self._enqueue_scorer(request, scorer.with_top(request.num_top))

    def add_scorer(self, request: ScoreRequest, scorer: Scorer) -> None:
        """Queues any other question about log-probabilities after `request.prompt_ids`."""
        check_scorer(request, scorer, self.info, self.config)
        self._enqueue_scorer(request, scorer)

    def _enqueue_scorer(self, request: ScoreRequest, scorer: Scorer) -> None:
        params = DecodeParams(decoder=DecoderParams(DecoderName.AR, canvas_len=1))
        ref, lease = request.adapter, self._lease(request.adapter)
        as_request = Request(
            request.id, request.prompt_ids, params, request.tenant, runs_alone=request.runs_alone, adapter=ref
        )
        sequence = Sequence(as_request, scorer, adapter=lease.adapter if lease else None, adapter_lease=lease)
        sequence.tokens += scorer.passes[0].added
        self._enqueue(sequence, is_continued=request.is_continued)

    def _enqueue(self, sequence: Sequence, *, is_continued: bool) -> None:
        if not is_continued:
            if self.scheduler.num_waiting >= self.config.max_waiting:
                raise EngineUnavailable("the queue is full; retry shortly")
            self._tenant_load.check(sequence.request.tenant, self._sequences.values())
            self._check_start(sequence.request)
        self._sequences[sequence.id] = sequence
        self.scheduler.add(sequence)
        self._add_counts(requests=1, prompt_tokens=sequence.num_prompt)

    def _check_start(self, request: Request) -> None:
        """Raises EngineOverloaded if the request would wait longer than it may."""
        limit_s = request.start_within_s
        wait_s = self.scheduler.waiting.start_s(request.tenant) if limit_s and not request.is_batch else 0.0
        if wait_s > limit_s:
            self._add_counts(refused=1)
            raise EngineOverloaded(
                f"this request would wait about {wait_s:.0f} s and may wait {limit_s:g} s; retry later",
                retry_after_s=wait_s - limit_s,
            )

    def _refuse_overdue(self) -> None:
        for sequence in self.scheduler.waiting.overdue():
            self._add_counts(refused=1)
            limit_s = sequence.request.start_within_s
            self._fail(sequence, EngineOverloaded(f"this request could not start within {limit_s:g} s; retry later"))

    def abort(self, request_id: str) -> None:
        """Ends a request of any kind with an ABORT delta; its pages are free before the next step. Unknown ids are
        ignored."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._emit(Delta(request_id, finish=FinishReason.ABORT, usage=sequence.usage()))

    def stats(self) -> EngineStats:
        return EngineStats(
            **self._counts,
            running=len(self.scheduler.running),
            waiting=self.scheduler.num_waiting,
            free_pages=self.pool.num_free,
            cached_pages=self.pool.num_cached,
            preemptions=self.scheduler.num_preemptions,
        )

    def _forward(self, works: list[Work]) -> list[tuple[Work, Outcome | None]]:
        """Runs the batch. If it raises, each sequence runs alone, so that only the faulty one fails."""
        if not works:
            return []
        self._add_counts(steps=1, rows=sum(work.num_rows for work in works))
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

    def _commit(self, work: Work, outcome: Outcome | None, decision: Decision | None = None) -> None:
        sequence = work.sequence
        sequence.forwards += 1
        sequence.rows += work.num_rows
        try:
            if outcome is None:
                sequence.kv_len = work.end
            elif isinstance(sequence.decoder, Scorer):
                self._commit_scores(work, outcome, sequence.decoder)
            else:
                self._commit_tokens(work, outcome, decision)
        except Exception as error:
            self._fail(sequence, error)
        self._publish(sequence)

    def _commit_tokens(self, work: Work, outcome: Outcome, decision: Decision | None) -> None:
        step = commit(work, outcome, decision)
        if step.num_verified:
            self.scheduler.canvas_length.observe(step.num_accepted, step.num_verified)
        for event in step.events:
            self._emit(event)

    def _commit_scores(self, work: Work, outcome: Outcome, scorer: Scorer) -> None:
        sequence, scores = work.sequence, commit_scores(work, outcome, scorer)
        if scores is not None:
            self._emit(Scored(sequence.id, scores))
        elif sequence.canvas is not None:
            following = scorer.passes[sequence.canvas.step]
            self.scheduler.continue_with(sequence, sequence.num_prompt + following.num_kept, following.added)

    def _publish(self, sequence: Sequence) -> None:
        """Makes full pages of final text available to other sequences."""
        if sequence.id in self._sequences:
            self.scheduler.publish(sequence)

    def _fail_impossible(self, works: list[Work]) -> None:
        """Admission checks make sure that every request fits an empty engine. If one does not, it must not block the
        queue forever."""
        sequence = None if works else self.scheduler.impossible()
        if sequence is not None:
            self._fail(sequence, ContextTooLong("the request needs more KV memory than the engine has"))

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        code = error.code if isinstance(error, QuicksilverError) else RowFailed.code
        message = f"{code}: {error}" if isinstance(error, QuicksilverError) else f"{code}: {type(error).__name__}"
        self._emit(Delta(sequence.id, finish=FinishReason.ERROR, usage=sequence.usage(), error=message))

    def _emit(self, event: StepEvent) -> None:
        self._events.append(event)
        if isinstance(event, Delta):
            sequence = self._sequences[event.request_id]
            # Tokens that the grammar determines come before the first forward.
            sequence.runs_alone &= not sequence.has_run
            self._add_counts(generated_tokens=len(event.token_ids), forced_tokens=event.num_forced)
        if isinstance(event, Scored):
            self._finish(event.request_id, FinishReason.STOP)
        elif isinstance(event, Delta) and event.finish is not None:
            self._finish(event.request_id, event.finish)

    def _finish(self, request_id: str, reason: FinishReason) -> None:
        sequence = self._sequences[request_id]
        self._publish(sequence)
        del self._sequences[request_id]
        self.scheduler.remove(sequence)
        self._add_counts(
            cached_tokens=sequence.cached_tokens,
            drafted_tokens=sequence.drafted,
            accepted_tokens=sequence.accepted,
            aborts=reason is FinishReason.ABORT,
            failures=reason is FinishReason.ERROR,
        )

    def _add_counts(self, **counts: int) -> None:
        for name, count in counts.items():
            self._counts[name] += count

    def _drain(self) -> list[StepEvent]:
        events, self._events = self._events, []
        return events


def _decode_slots(backend: Backend, pool: PagePool, config: EngineConfig) -> DecodeSlots | None:
    return DecodeSlots(backend.persistent, pool, config.page_size) if backend.persistent is not None else None
