"""When a request is over: at a stop token, or when its room is used up. The same rule for the engine and the oracle."""

from __future__ import annotations

from collections.abc import Sequence

from quicksilver.core import FinishReason


def take(tokens: Sequence[int], stop_ids: Sequence[int], room: int) -> tuple[list[int], FinishReason | None]:
    """The part of `tokens` that belongs to the answer (no stop token), and why it ends there, if it does."""
    for i, token in enumerate(tokens[: room + 1]):
        if token in stop_ids:
            return list(tokens[:i]), FinishReason.STOP
    if len(tokens) >= room:
        return list(tokens[:room]), FinishReason.LENGTH
    return list(tokens), None
