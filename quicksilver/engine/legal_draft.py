"""What a grammar makes of a draft: forced tokens take the place of others, and illegal ones are cut off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quicksilver.backends.base import Sequence
from quicksilver.diffusion.canvas import CanvasDecoder
from quicksilver.diffusion.decoder import Canvas


def after_forced(sequence: Sequence, forced: list[int]) -> Canvas | None:
    """A draft stays if it begins with the forced tokens, a random canvas moves up; any other canvas is dropped."""
    canvas = sequence.canvas
    if canvas is None or not forced:
        return canvas
    if isinstance(sequence.decoder, CanvasDecoder):
        return sequence.decoder.advance(canvas, len(forced))
    if canvas.is_draft and canvas.token_ids[: len(forced)].tolist() == forced:
        return _shorten(canvas, len(forced), len(canvas.token_ids))
    return None


def legal_draft(sequence: Sequence) -> Canvas | None:
    """Replaces draft tokens by those that the grammar forces, and cuts the draft before its first token that is illegal
    even so. Where only a verify forward commits, one token stays."""
    canvas, constraint = sequence.canvas, sequence.constraint
    if canvas is None or constraint is None or not canvas.is_draft:
        return canvas
    tokens = canvas.token_ids.tolist()
    legal = constraint.legal_prefix(tokens)
    is_changed, num_before = False, -1
    # A forced token is certain to be accepted, so the verify forward reaches further. Forced text that the remaining
    # tokens do not allow is not filled in twice.
    while num_before < legal < len(tokens) and (forced := constraint.forced(tokens[:legal])):
        end = min(legal + len(forced), len(tokens))
        tokens[legal:end] = forced[: end - legal]
        is_changed, num_before = True, legal
        legal = constraint.legal_prefix(tokens)
    if is_changed:
        canvas = replace(canvas, token_ids=np.array(tokens, np.int64))
    return _shorten(canvas, 0, max(legal, int(sequence.dialect.has_draft_seed)))


def _shorten(canvas: Canvas, start: int, end: int) -> Canvas | None:
    if start >= end:
        return None
    if start == 0 and end == len(canvas.token_ids):
        return canvas
    part = slice(start, end)
    return replace(
        canvas,
        token_ids=canvas.token_ids[part],
        is_masked=canvas.is_masked[part],
        confidence=canvas.confidence[part],
    )
