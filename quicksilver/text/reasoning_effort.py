"""The thinking budget of a reasoning effort and a token limit. At least a quarter of the tokens is for the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

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
    whole = ThinkBudget((close_id,), max_new_tokens, tuple(encode(CUT_THOUGHT)))
    return lower_budget(whole, think_budget(effort, max_new_tokens))


def lower_budget(think: ThinkBudget, most: int) -> ThinkBudget:
    """The same limit with at most `most` tokens, the closing line included. Where only the line would fit, it is left
    out."""
    budget, num_cut = min(think.max_tokens + len(think.cut_ids), most), len(think.cut_ids)
    if budget <= num_cut:
        return replace(think, max_tokens=budget, cut_ids=())
    return replace(think, max_tokens=budget - num_cut)


def asks_to_think(effort: str | None) -> bool:
    """Whether this effort opens the thinking channel; None does not."""
    return _share(effort) > 0


def _share(effort: str | None) -> float:
    share = _SHARES.get(effort or "none")
    if share is None:
        raise InvalidRequest(f"reasoning_effort is one of {', '.join(EFFORTS)}", param="reasoning_effort")
    return share
