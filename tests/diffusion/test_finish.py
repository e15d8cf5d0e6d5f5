"""Stop tokens and token limits."""

from __future__ import annotations

import torch

from quicksilver.core import FinishReason
from quicksilver.diffusion.decoder import Canvas, Decision
from quicksilver.diffusion.finish import stop_early, truncate


def test_answers_end_before_a_stop_token_or_at_the_limit() -> None:
    assert truncate([1, 2, 3], stop_ids=[3], max_tokens=9) == ([1, 2], FinishReason.STOP)
    assert truncate([1, 2, 3], stop_ids=[], max_tokens=2) == ([1, 2], FinishReason.LENGTH)
    assert truncate([1, 2, 3], stop_ids=[3], max_tokens=2) == ([1, 2], FinishReason.STOP)
    assert truncate([1, 2], stop_ids=[3], max_tokens=5) == ([1, 2], None)


def test_a_stop_token_without_a_mask_before_it_ends_an_unfinished_canvas() -> None:
    canvas = Canvas(torch.tensor([5, 9, 7]), torch.tensor([False, False, True]), torch.ones(3))
    assert stop_early(Decision([], canvas), stop_ids=[9]).commit == [5, 9]
    hidden = Canvas(torch.tensor([5, 6, 9]), torch.tensor([False, True, False]), torch.ones(3))
    assert stop_early(Decision([], hidden), stop_ids=[9]).commit == []
    assert stop_early(Decision([1], canvas), stop_ids=[9]).commit == [1]


def test_a_stop_token_that_may_still_be_edited_ends_nothing() -> None:
    """Under a grammar it does once a forward leaves the tokens up to it unchanged."""
    canvas = Canvas(torch.tensor([5, 9, 7]), torch.tensor([False, False, True]), torch.ones(3))
    settled, edited = Decision([], canvas, num_settled=2), Decision([], canvas, num_settled=1)
    assert stop_early(settled, stop_ids=[9]) is settled
    assert stop_early(edited, stop_ids=[9], has_grammar=True) is edited
    assert stop_early(settled, stop_ids=[9], has_grammar=True).commit == [5, 9]
