"""When a request ends: at a stop token, or at its token limit. The engine and the reference loop share these rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quicksilver.core import FinishReason
from quicksilver.diffusion.decoder import Decision


def stop_early(decision: Decision, stop_ids: Sequence[int], *, has_grammar: bool = False) -> Decision:
    """Commit a canvas up to a decided stop token that has no mask before it, even if the decoder would continue.

    Canvases whose decided tokens may still change are excepted: random ones, and those of `edit`. A grammar allows
    nothing after the stop token: under one, a canvas of `edit` ends once a forward leaves the tokens up to there
    unchanged.
    """
    canvas, num_settled = decision.canvas, decision.num_settled
    if decision.commit or canvas is None or canvas.is_draft or canvas.noisy_ids is not None:
        return decision
    if num_settled is not None and not has_grammar:
        return decision
    num_final = canvas.num_decided if num_settled is None else min(canvas.num_decided, num_settled)
    run = canvas.token_ids[:num_final].tolist()
    if not any(token in stop_ids for token in run):
        return decision
    return replace(decision, commit=run, canvas=None)


def truncate(tokens: Sequence[int], stop_ids: Sequence[int], max_tokens: int) -> tuple[list[int], FinishReason | None]:
    """The part of `tokens` that belongs to the answer (without the stop token), and why it ends there, if it does."""
    for i, token in enumerate(tokens[: max_tokens + 1]):
        if token in stop_ids:
            return list(tokens[:i]), FinishReason.STOP
    if len(tokens) >= max_tokens:
        return list(tokens[:max_tokens]), FinishReason.LENGTH
    return list(tokens), None
