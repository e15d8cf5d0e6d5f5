"""When a request is over: at a stop token, or when its room is used up. The same rule for the engine and the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quicksilver.core import FinishReason
from quicksilver.diffusion.decoder import Decision


def end_early(decision: Decision, stop_ids: Sequence[int]) -> Decision:
    """A stop token with no mask before it ends the answer at this step, whatever the decoder still had in mind."""
    if decision.commit or decision.canvas is None or decision.canvas.is_draft:
        return decision
    run = decision.canvas.token_ids[: decision.canvas.num_decided].tolist()
    if not any(token in stop_ids for token in run):
        return decision
    return replace(decision, commit=run, canvas=None)


def take(tokens: Sequence[int], stop_ids: Sequence[int], room: int) -> tuple[list[int], FinishReason | None]:
    """The part of `tokens` that belongs to the answer (no stop token), and why it ends there, if it does."""
    for i, token in enumerate(tokens[: room + 1]):
        if token in stop_ids:
            return list(tokens[:i]), FinishReason.STOP
    if len(tokens) >= room:
        return list(tokens[:room]), FinishReason.LENGTH
    return list(tokens), None
