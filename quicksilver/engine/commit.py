"""What happens to a sequence after a forward: decide, keep it lawful, commit, and say what to emit.

Grammar, thinking budget and stop rules meet here, all through `core` Protocols. Nothing here touches pages or queues.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from quicksilver.backends.base import Outcome, Work
from quicksilver.backends.sequence import Sequence
from quicksilver.core import Delta, Event, FinishReason, Frame, TokenLogprob
from quicksilver.diffusion.decoder import Canvas, Decision
from quicksilver.diffusion.finish import end_early, take
from quicksilver.diffusion.sample import Proposal
from quicksilver.errors import RowFailed

MAX_STEPS_PER_POSITION = 5
"""Where a grammar keeps throwing a canvas back, its lawful beginning commits after this many steps a position."""


@dataclass(frozen=True, slots=True)
class Committed:
    """Newly fixed tokens: what the model decided, then what was forced behind it."""

    decided: list[int]
    forced: list[int]
    finish: FinishReason | None


def begin(sequence: Sequence) -> list[Event]:
    """Before the first forward: write down what the grammar already determines."""
    if sequence.constraint is None or sequence.is_thinking:
        return []
    forced, finish = _forced(sequence)
    return _events(sequence, Committed([], forced, finish)) if forced or finish else []


def commit(work: Work, outcome: Outcome) -> list[Event]:
    """Apply a forward's outcome to its sequence. Raises RowFailed if the outcome is unusable."""
    sequence = work.sequence
    if not all(outcome.proposal.is_finite.tolist()):
        raise RowFailed("the model returned non-finite numbers for this request")
    assert sequence.canvas is not None
    decision = sequence.decoder.decide(sequence.canvas, outcome.proposal)
    decision = _keep_lawful(sequence, decision, outcome.proposal)
    decision = end_early(decision, sequence.request.params.stop_ids)
    decision = _with_draft(sequence, decision, outcome.draft)
    _remember_logprobs(sequence, outcome, decision)
    sequence.canvas, sequence.is_draft_free = decision.canvas, outcome.draft is not None
    committed = _extend(sequence, decision.commit)
    # Of what agreed, only what the answer took, and the token that ended it.
    sequence.accepted += min(decision.num_accepted, len(committed.decided) + (committed.finish is FinishReason.STOP))
    if outcome.draft is None or committed.finish is None:
        _count_draft(sequence, decision.num_drafted)
    # The last token stays uncached even if nothing was committed: its row proposes the next token again.
    sequence.kv_len = min(work.end + decision.num_accepted, len(sequence.tokens) - 1)
    return _events(sequence, committed)


def _count_draft(sequence: Sequence, num_drafted: int) -> None:
    """A draft that rode along with the answer's last verification begins no round, and is not counted."""
    sequence.drafted += num_drafted
    sequence.rounds += num_drafted > 0


def _with_draft(sequence: Sequence, decision: Decision, draft: Proposal | None) -> Decision:
    """Where a draft came along with the verification, the next canvas is that draft, as far as the answer has room."""
    count = sequence.room - len(decision.commit) - 1
    if draft is None or decision.canvas is not None or count < 1:
        return decision
    token_ids, confidence = draft.token_ids[:count], draft.confidence[:count]
    canvas = Canvas(token_ids, torch.ones(len(token_ids), dtype=torch.bool), confidence, 1, is_draft=True)
    return replace(decision, canvas=canvas, num_drafted=len(token_ids))


def _keep_lawful(sequence: Sequence, decision: Decision, proposal: Proposal) -> Decision:
    """Cut a decision at the first token the grammar forbids; a canvas behind an illegal token is remasked."""
    if sequence.constraint is None:
        return decision
    legal = sequence.constraint.legal_prefix(decision.commit)
    if legal < len(decision.commit):
        return replace(decision, commit=decision.commit[:legal], canvas=None)
    if decision.canvas is None or decision.commit:
        return decision
    before = sequence.canvas
    assert before is not None
    canvas = _fill_first_hole(decision.canvas, before.num_decided, proposal)
    canvas = canvas.holding(sequence.constraint.sweep(canvas.tokens_or_holes))
    if canvas.step >= MAX_STEPS_PER_POSITION * len(canvas.token_ids) or _is_out_of_room(before, canvas):
        return replace(decision, commit=canvas.token_ids[: canvas.num_decided].tolist(), canvas=None)
    return replace(decision, canvas=canvas)


def _fill_first_hole(canvas: Canvas, hole: int, proposal: Proposal) -> Canvas:
    """The first hole's proposal was masked by the grammar, so it is lawful: taking it bounds the number of steps."""
    if hole >= len(canvas.token_ids):
        return canvas
    is_masked, token_ids = canvas.is_masked.clone(), canvas.token_ids.clone()
    is_masked[hole], token_ids[hole] = False, proposal.token_ids[hole]
    return replace(canvas, is_masked=is_masked, token_ids=token_ids)


def _is_out_of_room(before: Canvas, after: Canvas) -> bool:
    """Whether the first hole, lawful by its bitmask, was refused: nothing but the shortest way to the end fits."""
    run = before.num_decided
    return after.num_decided <= run < len(after.token_ids) and bool((before.token_ids == after.token_ids)[:run].all())


def _extend(sequence: Sequence, tokens: list[int]) -> Committed:
    """Append what belongs to the answer, then whatever grammar or budget force behind it."""
    params = sequence.request.params
    decided, finish = take(tokens, params.stop_ids, sequence.room)
    if sequence.is_thinking:
        decided, closing, finish = _bound_thinking(sequence, decided, finish)
    else:
        closing = []
    _append(sequence, decided + closing)
    if finish is not None:
        return Committed(decided, closing, finish)
    forced, finish = _forced(sequence)
    return Committed(decided, closing + forced, finish)


def _bound_thinking(
    sequence: Sequence, decided: list[int], finish: FinishReason | None
) -> tuple[list[int], list[int], FinishReason | None]:
    """Close the thinking channel when its budget is used up, or when the model would end inside it."""
    think = sequence.request.think
    assert think is not None
    left = think.max_tokens - len(sequence.generated)
    if _contains(sequence.generated[-len(think.close_ids) :] + decided, think.close_ids):
        sequence.is_thinking = False
        return decided, [], finish
    if finish is not FinishReason.STOP and len(decided) < left:
        return decided, [], finish
    sequence.is_thinking, sequence.canvas = False, None
    return decided[: max(left, 0)], list(think.close_ids), None


def _forced(sequence: Sequence) -> tuple[list[int], FinishReason | None]:
    """Tokens the grammar determines, without a forward; and the end, where nothing else may follow."""
    constraint = sequence.constraint
    if constraint is None:
        return [], None
    forced, _ = take(constraint.forced(), sequence.request.params.stop_ids, sequence.room)
    _append(sequence, forced)
    sequence.canvas = _after_forced(sequence.canvas, forced)
    if constraint.must_stop():
        return forced, FinishReason.STOP
    if sequence.room <= 0:
        return forced, FinishReason.LENGTH
    closing = constraint.closing(sequence.room)
    if closing is None:
        sequence.canvas = _lawful_draft(sequence)
        return forced, None
    _append(sequence, closing[: sequence.room])
    return forced + closing, FinishReason.LENGTH


def _after_forced(canvas: Canvas | None, forced: list[int]) -> Canvas | None:
    """A draft survives forced text that it foresaw; any other canvas behind forced text starts afresh."""
    if canvas is None or not forced:
        return canvas
    if canvas.is_draft and canvas.token_ids[: len(forced)].tolist() == forced:
        return _shorten(canvas, len(forced), len(canvas.token_ids))
    return None


def _lawful_draft(sequence: Sequence) -> Canvas | None:
    """Drafted tokens from the first illegal one on need no verifying."""
    canvas, constraint = sequence.canvas, sequence.constraint
    if canvas is None or constraint is None or not canvas.is_draft:
        return canvas
    return _shorten(canvas, 0, constraint.legal_prefix(canvas.token_ids.tolist()))


def _shorten(canvas: Canvas, start: int, end: int) -> Canvas | None:
    if start >= end:
        return None
    part = slice(start, end)
    return replace(
        canvas,
        token_ids=canvas.token_ids[part],
        is_masked=canvas.is_masked[part],
        confidence=canvas.confidence[part],
    )


def _append(sequence: Sequence, tokens: list[int]) -> None:
    sequence.tokens += tokens
    if sequence.constraint is not None and tokens:
        sequence.constraint.advance(tokens)
        if sequence.constraint.is_over():
            # Free requests are faster: on a GPU their rounds need no host.
            sequence.constraint = None


def _contains(tokens: list[int], wanted: tuple[int, ...]) -> bool:
    return any(tuple(tokens[i : i + len(wanted)]) == wanted for i in range(len(tokens) - len(wanted) + 1))


def _remember_logprobs(sequence: Sequence, outcome: Outcome, decision: Decision) -> None:
    """Keep, per position, the log-probability from the row that decided the token standing there."""
    if not outcome.logprobs:
        return
    standing = list(decision.commit)
    if decision.canvas is not None:
        standing += decision.canvas.token_ids.tolist()
    for position, (token, logprob) in enumerate(zip(standing, outcome.logprobs, strict=False), len(sequence.tokens)):
        if logprob.token_id == token:
            sequence.logprob_at[position] = logprob


def _events(sequence: Sequence, committed: Committed) -> list[Event]:
    tokens = committed.decided + committed.forced
    events: list[Event] = []
    if tokens or committed.finish:
        events.append(
            Delta(
                sequence.id,
                tuple(tokens),
                _logprobs_of(sequence, tokens),
                num_forced=len(committed.forced),
                finish=committed.finish,
                usage=sequence.usage(),
            )
        )
    if sequence.request.wants_frames:
        events.append(_frame(sequence))
    return events


def _logprobs_of(sequence: Sequence, tokens: list[int]) -> tuple[TokenLogprob, ...]:
    if sequence.request.params.logprobs is None:
        return ()
    first = len(sequence.tokens) - len(tokens)
    found = (sequence.logprob_at.pop(first + i, None) for i in range(len(tokens)))
    # A forced token was certain: nothing else could stand there.
    return tuple(lp or TokenLogprob(token, 0.0) for token, lp in zip(tokens, found, strict=True))


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
    """What else might stand at each canvas position; nothing where the log-probabilities belong to another token."""
    known = [sequence.logprob_at.get(len(sequence.tokens) + i) for i in range(len(token_ids))]
    return tuple(lp.top if lp and lp.token_id == token else () for token, lp in zip(token_ids, known, strict=True))
