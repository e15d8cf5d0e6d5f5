"""The `window` decoder: row order, what is filled, and how the window moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quicksilver.core import DecoderName, DecoderParams
from quicksilver.dialect import Dialect
from quicksilver.diffusion.decoder import Canvas
from quicksilver.diffusion.sample import Proposal
from quicksilver.diffusion.window import Window
from tests.support.proposals import proposal_of

DECODER = Window(DecoderParams(DecoderName.WINDOW, canvas_len=4, entropy_bound=0.5), Dialect(mask_id=9))


def proposal(tokens: list[int], entropy: list[float]) -> Proposal:
    return proposal_of(tokens, [1.0] * len(tokens), entropy)


def test_filled_positions_come_before_masks_with_their_true_positions() -> None:
    tokens, is_masked = np.array([0, 5, 0, 6]), np.array([True, False, True, False])
    canvas = replace(Canvas.blank(4), token_ids=tokens, is_masked=is_masked)
    tail = DECODER.tail(canvas)
    assert tail.token_ids == (5, 6, 9, 9)
    assert tail.positions == (1, 3, 0, 2)
    assert tail.row_of == (3, 1, 4, 2)
    assert tail.known == ()


def test_every_position_below_the_bound_is_filled_and_always_the_best() -> None:
    some = DECODER.decide(Canvas.blank(4), proposal([1, 2, 3, 4], [0.9, 0.1, 0.9, 0.45]))
    assert some.commit == []
    assert some.canvas is not None
    # The distance from the first mask adds 0.06 at the last position.
    assert some.canvas.is_masked.tolist() == [True, False, True, True]
    none = DECODER.decide(Canvas.blank(4), proposal([1, 2, 3, 4], [2.0, 1.0, 3.0, 3.0]))
    assert none.canvas is not None
    assert none.canvas.is_masked.tolist() == [True, False, True, True]


def test_the_leading_run_is_committed_and_as_many_masks_enter_one_forward_later() -> None:
    first = DECODER.decide(Canvas.blank(4), proposal([1, 2, 3, 4], [0.1, 0.1, 2.0, 2.0]))
    assert first.commit == [1, 2]
    assert first.canvas is not None
    assert len(first.canvas.token_ids) == 2
    second = DECODER.decide(first.canvas, proposal([3, 4], [0.1, 2.0]))
    assert second.commit == [3]
    assert second.canvas is not None
    assert len(second.canvas.token_ids) == 3


def test_a_window_that_is_filled_at_once_is_replaced() -> None:
    assert DECODER.decide(Canvas.blank(4), proposal([1, 2, 3, 4], [0.0] * 4)).canvas is None
