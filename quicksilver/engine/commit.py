"""Applies the outcome of a forward to its sequence: decide, check the grammar, commit tokens, build the events.

Grammar, thinking budget and stop rules are applied here. Pages and queues are not touched.

`canvas_state` and `restore` move a sequence to another worker. Committed tokens determine the rest of a `verify` or
`ar` answer: noise is a function of seed and position. The other decoders also depend on the canvas after the last
commit, which each Delta therefore carries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from quicksilver.backends.base import Outcome, Sequence, Work
from quicksilver.core import (
    CanvasState,
    DecoderName,
    Delta,
    Event,
    FinishReason,
    Frame,
    ResumePoint,
    Scores,
    TokenConstraint,
    TokenLogprob,
)
from quicksilver.diffusion.canvas import CanvasDecoder
from quicksilver.diffusion.decoder import Canvas, Decision, Place, stop_early, truncate
from quicksilver.diffusion.sample import Proposal
from quicksilver.diffusion.score import Scorer
from quicksilver.engine.legal_draft import after_forced, legal_draft
from quicksilver.errors import RowFailed

# A grammar may reject parts of a canvas again and again. After this many steps per position the longest prefix of the
# canvas that the grammar accepts is committed.
MAX_STEPS_PER_POSITION = 5


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The events of one sequence in one step, and how much of its draft was accepted if one was verified."""

    events: list[Event]
    num_verified: int = 0
    num_accepted: int = 0


@dataclass(frozen=True, slots=True)
class NewTokens:
    """Newly committed tokens: those the model decided, then those that a grammar or budget forced after them."""

    decided: list[int]
    forced: list[int]
    finish: FinishReason | None


def begin(sequence: Sequence) -> list[Event]:
    """Before the first forward: restores the state of an interrupted request, or commits what the grammar already
    determines."""
    resume = sequence.request.resume
    if resume is not None:
        restore(sequence, resume)
        _append(sequence, list(resume.token_ids))
    is_continued = resume is not None and len(resume.token_ids) > 0
    if sequence.constraint is None or (sequence.is_thinking and not is_continued):
        return []
    forced, finish = _forced(sequence)
    return _events(sequence, NewTokens([], forced, finish)) if forced or finish else []


def commit(work: Work, outcome: Outcome, decision: Decision | None = None) -> CommitResult:
    """`decision`: that of the decoder, if it was made together with those of other requests. Raises RowFailed if the
    outcome is not finite."""
    sequence = work.sequence
    _check_finite(outcome)
    assert sequence.canvas is not None
    assert work.tail is not None
    is_predicted = sequence.canvas.is_predicted  # copied from the request's prediction
    if decision is None:
        decision = sequence.decoder.decide(sequence.canvas, outcome.proposal)
    num_verified = len(work.tail.token_ids) if work.tail.is_causal else 0
    num_accepted = decision.num_accepted
    decision = _keep_legal(sequence, decision, outcome.proposal)
    has_grammar = sequence.constraint is not None
    decision = stop_early(decision, sequence.request.params.stop_ids, has_grammar=has_grammar)
    _keep_logprobs(sequence, outcome, decision)
    sequence.canvas = decision.canvas
    new = _extend(sequence, decision.commit)
    if num_verified:
        # Count accepted tokens only if they became part of the answer or are the stop token.
        num_used = min(decision.num_accepted, len(new.decided) + (new.finish is FinishReason.STOP))
        sequence.count_draft(num_used, num_verified, is_predicted=is_predicted)
    sequence.drafted += decision.num_drafted
    sequence.rounds += decision.num_drafted > 0
    # A budget may cut accepted tokens off and put others in their place, whose KV is not computed yet. `num_kept` drops
    # the KV of a last row that predicts the next token, also if nothing was committed.
    num_computed = work.end + min(decision.num_accepted, len(new.decided))
    num_tokens = len(sequence.tokens)
    sequence.kv_len = sequence.dialect.num_kept(num_computed, num_tokens, sequence.num_prompt)
    # The scheduler picks the canvas length by the accepted drafts of canvases; drafts of a prediction do not count.
    return CommitResult(_events(sequence, new), 0 if is_predicted else num_verified, num_accepted)


def commit_scores(work: Work, outcome: Outcome, scorer: Scorer) -> Scores | None:
    """Adds the log-probabilities of one pass. Returns those of all continuations after the last pass, else None."""
    sequence = work.sequence
    _check_finite(outcome)
    assert sequence.canvas is not None
    assert outcome.target_logprobs is not None
    assert work.tail is not None
    sequence.scored += outcome.target_logprobs.tolist()
    sequence.scored_details += outcome.target_details
    # Causal rows have written KV; branches have not.
    written = work.tail.token_ids if work.tail.is_causal else ()
    sequence.tokens += written
    sequence.kv_len = work.end + len(written)
    sequence.canvas = scorer.decide(sequence.canvas, outcome.proposal).canvas
    if sequence.canvas is not None:
        return None
    details = scorer.split(sequence.scored_details) if sequence.scored_details else ()
    return Scores(scorer.split(sequence.scored), sequence.usage(), details)


def _check_finite(outcome: Outcome) -> None:
    if not all(outcome.proposal.is_finite.tolist()):
        raise RowFailed("the model returned non-finite numbers for this request")


def _keep_legal(sequence: Sequence, decision: Decision, proposal: Proposal) -> Decision:
    """Cuts a decision before the first illegal token; the canvas after an illegal token is remasked."""
    if sequence.constraint is None:
        return decision
    legal = sequence.constraint.legal_prefix(decision.commit)
    if legal < len(decision.commit):
        return replace(decision, commit=decision.commit[:legal], canvas=None)
    if decision.canvas is None or decision.commit or decision.canvas.is_draft:
        return decision
    if isinstance(sequence.decoder, CanvasDecoder):
        return _legal_run(sequence.constraint, sequence.decoder, decision.canvas)
    before = sequence.canvas
    assert before is not None
    canvas = _fill_first_mask(decision.canvas, before.num_decided, proposal)
    canvas = canvas.with_decided(sequence.constraint.sweep(canvas.decided_tokens))
    if canvas.step >= MAX_STEPS_PER_POSITION * len(canvas.token_ids) or _only_completion_fits(before, canvas):
        return replace(decision, commit=canvas.token_ids[: canvas.num_decided].tolist(), canvas=None)
    return replace(decision, canvas=canvas)


def _legal_run(constraint: TokenConstraint, decoder: CanvasDecoder, canvas: Canvas) -> Decision:
    """Under a grammar a random canvas commits the leading tokens that are accepted and legal; the rest moves up. The
    first token obeys the bitmask: if it is not legal, only the shortest completion of the grammar still fits."""
    run = canvas.token_ids[: canvas.num_decided].tolist()
    legal = constraint.legal_prefix(run)
    if legal:
        return Decision(run[:legal], decoder.advance(canvas, legal))
    return Decision([], None if run else canvas)


def _fill_first_mask(canvas: Canvas, index: int, proposal: Proposal) -> Canvas:
    """The proposal at the first mask obeys the bitmask, so it is legal. Taking it bounds the number of steps."""
    if index >= len(canvas.token_ids):
        return canvas
    is_masked, token_ids = canvas.is_masked.copy(), canvas.token_ids.copy()
    is_masked[index], token_ids[index] = False, proposal.token_ids[index]
    return replace(canvas, is_masked=is_masked, token_ids=token_ids)


def _only_completion_fits(before: Canvas, after: Canvas) -> bool:
    """Whether the token at the first mask was rejected although its bitmask allowed it: only the shortest completion of
    the grammar still fits."""
    run = before.num_decided
    return after.num_decided <= run < len(after.token_ids) and bool((before.token_ids == after.token_ids)[:run].all())


def _extend(sequence: Sequence, tokens: list[int]) -> NewTokens:
    """Appends the tokens that belong to the answer, then those that a grammar or budget forces after them."""
    params = sequence.request.params
    decided, finish = truncate(tokens, params.stop_ids, sequence.room)
    if sequence.is_thinking:
        decided, closing, finish = _bound_thinking(sequence, decided, finish)
    else:
        closing = []
    closing = closing[: max(sequence.room - len(decided), 0)]
    _append(sequence, decided + closing)
    if finish is not None:
        return NewTokens(decided, closing, finish)
    forced, finish = _forced(sequence)
    return NewTokens(decided, closing + forced, finish)


def _bound_thinking(
    sequence: Sequence, decided: list[int], finish: FinishReason | None
) -> tuple[list[int], list[int], FinishReason | None]:
    """Closes the thinking channel if its budget is used up, or if the model would end the answer inside it."""
    think = sequence.request.think
    assert think is not None
    left = think.max_tokens - len(sequence.generated)
    if contains(sequence.generated[-len(think.close_ids) :] + decided, think.close_ids):
        sequence.is_thinking = False
        return decided, [], finish
    if finish is not FinishReason.STOP and len(decided) < left:
        return decided, [], finish
    sequence.is_thinking, sequence.canvas = False, None
    is_cut = finish is not FinishReason.STOP and think.max_tokens > 0
    closing = (*think.cut_ids, *think.close_ids) if is_cut else think.close_ids
    return decided[: max(left, 0)], list(closing), None


def _forced(sequence: Sequence) -> tuple[list[int], FinishReason | None]:
    """Commits tokens that the grammar determines without a forward, and the end if nothing else may follow."""
    constraint = sequence.constraint
    if constraint is None:
        return [], FinishReason.LENGTH if sequence.room <= 0 else None
    forced, _ = truncate(constraint.forced(), sequence.request.params.stop_ids, sequence.room)
    _append(sequence, forced)
    sequence.canvas = after_forced(sequence, forced)
    if constraint.must_stop():
        sequence.logprob_at.pop(len(sequence.tokens), None)  # of a draft: no forward proposed the end
        return forced, FinishReason.STOP
    if sequence.room <= 0:
        return forced, FinishReason.LENGTH
    closing = constraint.closing(sequence.room)
    if closing is None:
        sequence.canvas = legal_draft(sequence)
        return forced, None
    _append(sequence, closing[: sequence.room])
    return forced + closing, FinishReason.LENGTH


def _append(sequence: Sequence, tokens: list[int]) -> None:
    sequence.tokens += tokens
    if sequence.constraint is not None and tokens:
        sequence.constraint.advance(tokens)
        if sequence.constraint.is_over():
            # On a GPU, rounds without a grammar run without the host.
            sequence.constraint = None


def _keep_logprobs(sequence: Sequence, outcome: Outcome, decision: Decision) -> None:
    """Stores, by position, the log-probability from the row that proposed the token at this position."""
    if not outcome.logprobs:
        return
    tokens = list(decision.commit)
    if decision.canvas is not None:
        tokens += decision.canvas.token_ids.tolist()
    for position, (token, logprob) in enumerate(zip(tokens, outcome.logprobs, strict=False), len(sequence.tokens)):
        if logprob.token_id == token:
            sequence.logprob_at[position] = logprob


def _events(sequence: Sequence, new: NewTokens) -> list[Event]:
    tokens = new.decided + new.forced
    events: list[Event] = []
    if tokens or new.finish:
        events.append(
            Delta(
                sequence.id,
                tuple(tokens),
                _logprobs_of(sequence, new),
                num_forced=len(new.forced),
                finish=new.finish,
                usage=sequence.usage(is_last=new.finish is not None),
                canvas=canvas_state(sequence) if new.finish is None else None,
            )
        )
    if sequence.request.wants_frames:
        events.append(_frame(sequence))
    return events


def _logprobs_of(sequence: Sequence, new: NewTokens) -> tuple[TokenLogprob, ...]:
    if sequence.request.params.logprobs is None:
        return ()
    tokens = new.decided + new.forced
    first = len(sequence.tokens) - len(tokens)
    found = [sequence.logprob_at.pop(first + i, None) for i in range(len(tokens))]
    # A forced token has probability 1, whatever a draft or canvas proposed at its position.
    found[len(new.decided) :] = [None] * len(new.forced)
    logprobs = tuple(
        lp if lp is not None and lp.token_id == token else TokenLogprob(token, 0.0)
        for token, lp in zip(tokens, found, strict=True)
    )
    stop = sequence.logprob_at.get(len(sequence.tokens)) if new.finish is FinishReason.STOP else None
    is_stop_token = stop is not None and stop.token_id in sequence.request.params.stop_ids
    return (*logprobs, stop) if stop is not None and is_stop_token else logprobs


def _frame(sequence: Sequence) -> Frame:
    canvas = sequence.canvas or Canvas.blank(0)
    token_ids = tuple(canvas.token_ids.tolist())
    return Frame(
        sequence.id,
        sequence.forwards,
        token_ids,
        tuple((~canvas.is_masked).tolist()),
        tuple(canvas.confidence.tolist()),
        _canvas_top(sequence, token_ids) if sequence.request.params.logprobs else (),
    )


def _canvas_top(sequence: Sequence, token_ids: tuple[int, ...]) -> tuple[tuple[tuple[int, float], ...], ...]:
    """The likeliest tokens at each canvas position; empty if the stored log-probabilities belong to another token."""
    known = [sequence.logprob_at.get(len(sequence.tokens) + i) for i in range(len(token_ids))]
    return tuple(lp.top if lp and lp.token_id == token else () for token, lp in zip(token_ids, known, strict=True))


# Decoders whose answer does not depend on the canvas.
CANVAS_FREE = (DecoderName.AR, DecoderName.VERIFY)


def canvas_state(sequence: Sequence) -> CanvasState | None:
    canvas = sequence.canvas
    if canvas is None or sequence.request.params.decoder.name in CANVAS_FREE:
        return None
    # A random canvas is committed as a whole, unless a grammar cuts it: then another worker begins with a new one.
    if canvas.noisy_ids is not None:
        return None
    positions = range(len(sequence.tokens), len(sequence.tokens) + len(canvas.token_ids))
    return CanvasState(
        tuple(canvas.token_ids.tolist()),
        tuple(canvas.is_masked.tolist()),
        tuple(canvas.confidence.tolist()),
        tuple(sequence.logprob_at.get(position) for position in positions),
        canvas.step,
        canvas.num_passes,
        canvas.num_entering,
    )


def restore(sequence: Sequence, point: ResumePoint) -> None:
    """Restores all state but the committed tokens, which the caller appends and the grammar consumes."""
    think, usage = sequence.request.think, point.usage
    sequence.is_thinking = think is not None and not contains(list(point.token_ids), think.close_ids)
    sequence.forwards, sequence.rows, sequence.cached_tokens = usage.forwards, usage.rows, usage.cached_tokens
    sequence.drafted, sequence.accepted, sequence.rounds = usage.drafted, usage.accepted, usage.rounds
    sequence.predicted, sequence.migrated = usage.predicted, usage.migrated
    sequence.created_at -= usage.engine_s
    sequence.queued_s = usage.queued_s
    if point.canvas is not None:
        _restore_canvas(sequence, point.canvas, sequence.num_prompt + len(point.token_ids))


def _restore_canvas(sequence: Sequence, state: CanvasState, start: int) -> None:
    """Fields that follow from the position of the canvas (known tokens, offset in the block) are those of a new one."""
    new = sequence.decoder.open(max(len(state.token_ids), 1), Place(start, sequence.num_prompt))
    sequence.canvas = replace(
        new,
        token_ids=np.array(state.token_ids, np.int64),
        is_masked=np.array(state.is_masked, np.bool_),
        confidence=np.array(state.confidence, np.float32),
        step=state.step,
        num_passes=state.num_passes,
        num_entering=state.num_entering,
    )
    sequence.logprob_at = {start + i: logprob for i, logprob in enumerate(state.logprobs) if logprob is not None}


def contains(tokens: list[int], wanted: tuple[int, ...]) -> bool:
    return any(tuple(tokens[i : i + len(wanted)]) == wanted for i in range(len(tokens) - len(wanted) + 1))
