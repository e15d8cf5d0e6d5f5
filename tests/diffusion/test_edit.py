"""The `edit` decoder on scripted proposals."""

from __future__ import annotations

import numpy as np

from quicksilver.core import DecoderName, DecoderParams
from quicksilver.diffusion.decoder import Canvas
from quicksilver.diffusion.edit import Edit, left_neighbours
from tests.support.proposals import confident, proposal


def test_filled_positions_are_revised_until_nothing_changes() -> None:
    decoder = Edit(DecoderParams(name=DecoderName.EDIT, canvas_len=3, threshold=0.5, edit_threshold=0.9))
    one = decoder.decide(decoder.open(100), proposal([1, 2, 3], [0.9, 0.9, 0.1]))
    assert one.commit == []
    assert one.canvas is not None
    two = decoder.decide(one.canvas, proposal([1, 7, 3], [0.9, 0.95, 0.9]))
    assert two.canvas is not None
    assert two.canvas.token_ids.tolist() == [1, 7, 3]
    assert two.num_settled == 1
    three = decoder.decide(two.canvas, proposal([1, 8, 3], [0.9, 0.8, 0.9]))
    assert three.commit == [1, 7, 3]


def test_edits_end_even_if_every_forward_proposes_other_tokens() -> None:
    decoder = Edit(DecoderParams(name=DecoderName.EDIT, canvas_len=4, threshold=0.5, edit_threshold=0.5, edit_passes=5))
    canvas: Canvas | None = decoder.open(100)
    for step in range(100):
        assert canvas is not None
        decision = decoder.decide(canvas, confident([step, step + 1, step + 2, step + 3]))
        canvas = decision.canvas
        if decision.commit:
            break
    assert len(decision.commit) == 4
    assert step <= 6


def test_the_stutter_penalty_is_on_decided_left_neighbours() -> None:
    canvas = Canvas(np.array([5, 6, 7]), np.array([False, True, False]), np.ones(3, np.float32))
    assert left_neighbours(Edit(DecoderParams()).tail(canvas), last_committed=4) == [4, 5, -1]
