"""The thinking budget of a reasoning effort and a token limit. At least a quarter of the tokens is for the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quicksilver.core import ThinkBudget
from quicksilver.errors import InvalidRequest

_SHARES = {"none": 0.0, "instant": 0.0, "low": 0.25, "medium": 0.5, "high": 0.75}
_SHORTEST_ANSWER = 16
# Ends a thought that reached its budget.
CUT_THOUGHT = " …\nI will answer now.\n"

EFFORTS: tuple[str, ...] = tuple(_SHARES)


def think_budget(effort: str | None, max_new_tokens: int) -> int:
    """Tokens of `max_new_tokens` that may go into thinking."""
    return max(0, min(int(max_new_tokens * _share(effort)), max_new_tokens - _SHORTEST_ANSWER))


def limit_thinking(
    effort: str | None, max_new_tokens: int, close_id: int, encode: Callable[[str], Sequence[int]]
) -> ThinkBudget:
    """The budget of an answer whose prompt opens the reasoning channel. The closing line is part of the budget."""
    budget, cut_ids = think_budget(effort, max_new_tokens), tuple(encode(CUT_THOUGHT))
    if budget <= len(cut_ids):
        return ThinkBudget((close_id,), budget)
    return ThinkBudget((close_id,), budget - len(cut_ids), cut_ids)


def asks_to_think(effort: str | None) -> bool:
    """Whether this effort opens the thinking channel; None does not."""
    return _share(effort) > 0


def _share(effort: str | None) -> float:
    share = _SHARES.get(effort or "none")
    if share is None:
        raise InvalidRequest(f"reasoning_effort is one of {', '.join(EFFORTS)}", param="reasoning_effort")
    return share
