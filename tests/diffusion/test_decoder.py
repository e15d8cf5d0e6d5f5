"""Records of the decoder interface: Canvas and Tail."""

from __future__ import annotations

import pytest
import torch

from quicksilver.diffusion.decoder import Canvas, Tail, canvas_tail


def canvas(tokens: list[int], is_masked: list[bool]) -> Canvas:
    return Canvas(torch.tensor(tokens), torch.tensor(is_masked), torch.zeros(len(tokens)))


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
    assert not Canvas(torch.zeros(1), torch.ones(1) > 0, torch.zeros(1), step=1).is_fresh
