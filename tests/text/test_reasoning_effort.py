from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quicksilver.core import ThinkBudget
from quicksilver.errors import InvalidRequest
from quicksilver.text.reasoning_effort import EFFORTS, asks_to_think, lower_budget, think_budget


@pytest.mark.parametrize("effort", [None, "none", "instant"])
def test_no_effort_means_no_thinking(effort: str | None) -> None:
    assert think_budget(effort, 10_000) == 0
    assert not asks_to_think(effort)


def test_more_effort_means_more_thinking() -> None:
    budgets = [think_budget(effort, 1000) for effort in ("low", "medium", "high")]
    assert budgets == [250, 500, 750]
    assert all(map(asks_to_think, ("low", "medium", "high")))


@given(st.sampled_from(EFFORTS), st.integers(1, 100_000))
def test_a_quarter_and_a_sentence_are_left_for_the_answer(effort: str, limit: int) -> None:
    left = limit - think_budget(effort, limit)
    assert left >= max(limit / 4, min(limit, 16))


def test_unknown_effort_names_the_field() -> None:
    with pytest.raises(InvalidRequest) as caught:
        think_budget("huge", 100)
    assert caught.value.param == "reasoning_effort"


@pytest.mark.parametrize(("most", "thought", "line"), [(40, 37, 3), (4, 1, 3), (3, 3, 0), (0, 0, 0), (1000, 100, 3)])
def test_the_closing_line_is_part_of_a_lower_budget(most: int, thought: int, line: int) -> None:
    lowered = lower_budget(ThinkBudget((9,), 100, (1, 2, 3)), most)
    assert (lowered.max_tokens, len(lowered.cut_ids)) == (thought, line)
