"""When a request ends: at a stop token, or at its token limit. The engine and the reference loop share these rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quicksilver.core import FinishReason
from quicksilver.diffusion.decoder import Decision


def stop_early(decision: Decision, stop_ids: Sequence[int]) -> Decision:
    """Commit a canvas up to a decided stop token that has no mask before it, even if the decoder would continue. Random
    canvases are excepted: their accepted tokens may still change."""
    canvas = decision.canvas
    if decision.commit or canvas is None or canvas.is_draft or canvas.noisy_ids is not None:
        return decision
    run = canvas.token_ids[: canvas.num_decided].tolist()
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
