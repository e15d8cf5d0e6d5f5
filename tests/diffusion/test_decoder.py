"""Records of the decoder interface: Canvas and Tail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quicksilver.core import FinishReason
from quicksilver.diffusion.decoder import Canvas, Decision, Tail, canvas_tail, stop_early, truncate


def canvas(tokens: list[int], is_masked: list[bool]) -> Canvas:
    return Canvas(np.array(tokens), np.array(is_masked), np.zeros(len(tokens), np.float32))


@pytest.mark.parametrize(
    ("is_masked", "known"),
    [((), ()), ((False, False), (5, 6)), ((True, False), ()), ((False, True), (5,))],
)
def test_known_tokens_end_at_the_first_mask(is_masked: tuple[bool, ...], known: tuple[int, ...]) -> None:
    assert Tail((5, 6)[: len(is_masked)], is_masked).known == known


def test_the_row_of_a_position_proposes_the_next_one() -> None:
    tail = canvas_tail(canvas([5, 6, 7], [False, True, True]))
    assert (tail.token_ids, tail.is_masked, tail.is_causal) == ((5, 6), (False, True), False)


def test_the_decided_run_ends_at_the_first_mask() -> None:
    assert canvas([5, 6, 7], [False, True, False]).num_decided == 1
    assert canvas([5, 6, 7], [False, False, False]).num_decided == 3
    assert Canvas.blank(4).num_decided == 0


def test_decided_tokens_round_trip_and_masked_guesses_are_kept() -> None:
    before = canvas([5, 6, 7], [False, True, False])
    assert before.decided_tokens == [5, None, 7]
    after = before.with_decided([5, None, None])
    assert after.decided_tokens == [5, None, None]
    assert after.token_ids.tolist() == [5, 6, 7]


def test_a_canvas_is_fresh_until_its_first_forward() -> None:
    assert Canvas.blank(3).is_fresh
    assert not replace(Canvas.blank(1), step=1).is_fresh


def test_answers_end_before_a_stop_token_or_at_the_limit() -> None:
    assert truncate([1, 2, 3], stop_ids=[3], max_tokens=9) == ([1, 2], FinishReason.STOP)
    assert truncate([1, 2, 3], stop_ids=[], max_tokens=2) == ([1, 2], FinishReason.LENGTH)
    assert truncate([1, 2, 3], stop_ids=[3], max_tokens=2) == ([1, 2], FinishReason.STOP)
    assert truncate([1, 2], stop_ids=[3], max_tokens=5) == ([1, 2], None)


def test_a_stop_token_without_a_mask_before_it_ends_an_unfinished_canvas() -> None:
    canvas = Canvas(np.array([5, 9, 7]), np.array([False, False, True]), np.ones(3, np.float32))
    assert stop_early(Decision([], canvas), stop_ids=[9]).commit == [5, 9]
    hidden = Canvas(np.array([5, 6, 9]), np.array([False, True, False]), np.ones(3, np.float32))
    assert stop_early(Decision([], hidden), stop_ids=[9]).commit == []
    assert stop_early(Decision([1], canvas), stop_ids=[9]).commit == [1]


def test_a_stop_token_that_may_still_be_edited_ends_nothing() -> None:
    """Under a grammar it does once a forward leaves the tokens up to it unchanged."""
    canvas = Canvas(np.array([5, 9, 7]), np.array([False, False, True]), np.ones(3, np.float32))
    settled, edited = Decision([], canvas, num_settled=2), Decision([], canvas, num_settled=1)
    assert stop_early(settled, stop_ids=[9]) is settled
    assert stop_early(edited, stop_ids=[9], has_grammar=True) is edited
    assert stop_early(settled, stop_ids=[9], has_grammar=True).commit == [5, 9]
