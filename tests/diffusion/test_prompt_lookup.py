"""What a text recalls of itself."""

from __future__ import annotations

import pytest
import torch

from quicksilver.diffusion.prompt_lookup import NUM_SAME, SURE, WINDOW, recall

SAID = [1, 2, 3, 4, 5, 6, 7, 8]


def recalled(text: list[int], draft: list[int]) -> list[int]:
    """By a canvas that is sure of nothing."""
    return recall(text, torch.tensor(draft, dtype=torch.int64), torch.zeros(len(draft))).tolist()


@pytest.mark.parametrize(
    ("text", "draft", "wanted"),
    [
        ([*SAID, 9, 1, 2, 3, 4], [5, 0, 0], [5, 6, 7]),
        ([*SAID, 9, 1, 2, 3, 4], [0, 6, 7], [0, 6, 7]),
        ([*SAID, 9, 0, 2, 3, 4], [5, 0, 0], [5, 0, 0]),
        ([*SAID, 1, 2, 3, 4], [5, 0, 0, 0, 0, 0, 11], [5, 6, 7, 8, 1, 2, 3]),
        ([1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 1, 2, 3, 4], [6, 0], [6, 1]),
        ([7, 7, 7, 7, 7], [7, 8, 9], [7, 8, 9]),
        ([7, 7, 7, 7], [7, 8], [7, 8]),
        ([1, 2], [3], [3]),
        ([*SAID, 1, 2, 3, 4], [], []),
    ],
    ids=[
        "what followed follows again",
        "the canvas has the first word",
        "three tokens are too few",
        "what is recalled goes up to the end of the text",
        "the latest place counts",
        "a repeat that overlaps its own end",
        "the end itself is no earlier place",
        "a short text",
        "nothing to draft",
    ],
)
def test_recalled_drafts(text: list[int], draft: list[int], wanted: list[int]) -> None:
    assert recalled(text, draft) == wanted


def test_behind_what_is_recalled_the_canvas_goes_on() -> None:
    text = [1, 2, 3, 4, 5, 6, 1, 2, 3, 4]
    assert recalled(text, [5, 9, 9, 9, 9, 9, 8, 7]) == [5, 6, 1, 2, 3, 4, 8, 7]


def test_a_canvas_that_is_sure_of_something_else_knows_better() -> None:
    text, draft = [*SAID, 9, 1, 2, 3, 4], torch.tensor([5, 6, 30, 8])
    for sure, wanted in ((SURE - 0.01, [5, 6, 7, 8]), (SURE, [5, 6, 30, 8])):
        assert recall(text, draft, torch.tensor([0.1, 1.0, sure, 1.0])).tolist() == wanted


def test_what_stood_too_far_back_is_forgotten() -> None:
    text = [*SAID, *range(100, 100 + WINDOW), 1, 2, 3, 4]
    assert recalled(text, [5, 0]) == [5, 0]
    near = [*SAID, *range(100, 100 + WINDOW - 2 * NUM_SAME - 8), 1, 2, 3, 4]
    assert recalled(near, [5, 0]) == [5, 6]
