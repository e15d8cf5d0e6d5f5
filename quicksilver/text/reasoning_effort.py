"""The thinking budget of a reasoning effort and a token limit. At least a quarter of the tokens is for the answer."""

from __future__ import annotations

from quicksilver.errors import InvalidRequest

_SHARES = {"none": 0.0, "instant": 0.0, "low": 0.25, "medium": 0.5, "high": 0.75}
_SHORTEST_ANSWER = 16

EFFORTS: tuple[str, ...] = tuple(_SHARES)


def think_budget(effort: str | None, max_new_tokens: int) -> int:
    """Tokens of `max_new_tokens` that may go into thinking."""
    return max(0, min(int(max_new_tokens * _share(effort)), max_new_tokens - _SHORTEST_ANSWER))


def asks_to_think(effort: str | None) -> bool:
    """Whether this effort opens the thinking channel; None does not."""
    return _share(effort) > 0


def _share(effort: str | None) -> float:
    share = _SHARES.get(effort or "none")
    if share is None:
        raise InvalidRequest(f"reasoning_effort is one of {', '.join(EFFORTS)}", param="reasoning_effort")
    return share
