"""The state of a sequence that must outlive its worker, and its restoration in another one.

Committed tokens determine the rest of a `verify` or `ar` answer: noise is a function of seed and position. The other
decoders also depend on the canvas after the last commit, which each Delta therefore carries.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from quicksilver.backends.sequence import Sequence
from quicksilver.core import CanvasState, DecoderName, ResumePoint
from quicksilver.diffusion.decoder import Place

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
    """Everything but the committed tokens, which the caller appends and its grammar consumes."""
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
    """What the place of a canvas determines is that of a new one: its known tokens and its place in the block."""
    new = sequence.decoder.open(max(len(state.token_ids), 1), Place(start, sequence.num_prompt))
    sequence.canvas = replace(
        new,
        token_ids=torch.tensor(state.token_ids, dtype=torch.int64),
        is_masked=torch.tensor(state.is_masked, dtype=torch.bool),
        confidence=torch.tensor(state.confidence, dtype=torch.float32),
        step=state.step,
        num_passes=state.num_passes,
        num_entering=state.num_entering,
    )
    sequence.logprob_at = {start + i: logprob for i, logprob in enumerate(state.logprobs) if logprob is not None}


def contains(tokens: list[int], wanted: tuple[int, ...]) -> bool:
    return any(tuple(tokens[i : i + len(wanted)]) == wanted for i in range(len(tokens) - len(wanted) + 1))
