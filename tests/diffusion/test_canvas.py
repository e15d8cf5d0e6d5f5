"""The `canvas` decoder: what is accepted, what becomes random again, and when a canvas ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quicksilver.core import DecoderName, DecoderParams
from quicksilver.dialect import Dialect
from quicksilver.diffusion.canvas import CanvasDecoder, step_temperature
from quicksilver.diffusion.decoder import Place, stop_early
from quicksilver.diffusion.sample import Proposal

PARAMS = DecoderParams(DecoderName.CANVAS, canvas_len=4, steps=5, entropy_bound=0.5, stop_entropy=0.2)
DECODER = CanvasDecoder(PARAMS, Dialect(noise_vocab=50), seed=3)
PLACE = Place(10, 4)


def proposal(best: list[int], entropy: list[float], sampled: list[int] | None = None) -> Proposal:
    count = len(best)
    return Proposal(
        np.array(best),
        np.full(count, 0.5, np.float32),
        np.array(entropy, np.float32),
        np.ones(count, np.bool_),
        np.array(sampled or best),
        torch.arange(count * 2.0).view(count, 2),
    )


def test_a_canvas_is_whole_and_random_and_depends_on_seed_and_position() -> None:
    canvas = DECODER.open(2, PLACE)
    assert len(canvas.token_ids) == 4
    assert DECODER.tail(canvas).token_ids == tuple(canvas.token_ids.tolist())
    assert DECODER.open(9, PLACE).token_ids.tolist() == canvas.token_ids.tolist()
    others = [CanvasDecoder(PARAMS, DECODER.dialect, seed=4).open(2, PLACE), DECODER.open(2, Place(14, 4))]
    assert all(other.token_ids.tolist() != canvas.token_ids.tolist() for other in others)
    assert 0 <= min(canvas.token_ids) <= max(canvas.token_ids) < 50


def test_sampled_tokens_of_least_entropy_are_accepted_and_all_others_become_random() -> None:
    canvas = DECODER.open(4, PLACE)
    # 0.1 is accepted first; 0.45 because only 0.1 precedes it; 0.6 is not, because 0.55 precedes it.
    decision = DECODER.decide(canvas, proposal([1, 2, 3, 4], [0.45, 0.6, 0.1, 0.9], [11, 12, 13, 14]))
    after = decision.canvas
    assert decision.commit == []
    assert after is not None
    assert after.noisy_ids is not None
    assert after.is_masked.tolist() == [False, True, False, True]
    assert after.token_ids.tolist() == [1, 2, 3, 4]
    assert (after.noisy_ids[0], after.noisy_ids[2]) == (11, 13)
    assert DECODER.tail(after).soft is after.soft is not None
    again = DECODER.decide(after, proposal([1, 2, 3, 5], [0.6, 0.1, 0.9, 0.45])).canvas
    assert again is not None
    assert again.is_masked.tolist() == [True, False, True, False]


def test_an_unchanged_and_certain_canvas_ends_with_its_likeliest_tokens() -> None:
    canvas = DECODER.open(4, PLACE)
    first = DECODER.decide(canvas, proposal([1, 2, 3, 4], [0.0] * 4))
    assert first.canvas is not None
    unsure = DECODER.decide(first.canvas, proposal([1, 2, 3, 4], [0.3] * 4))
    changed = DECODER.decide(first.canvas, proposal([1, 2, 3, 5], [0.1] * 4))
    assert unsure.commit == changed.commit == []
    ended = DECODER.decide(first.canvas, proposal([1, 2, 3, 4], [0.1] * 4, [9, 9, 9, 9]))
    assert (ended.commit, ended.canvas) == ([1, 2, 3, 4], None)


def test_the_last_step_ends_any_canvas() -> None:
    canvas = DECODER.open(4, PLACE)
    for step in range(4):
        after = DECODER.decide(canvas, proposal([step] * 4, [3.0] * 4)).canvas
        assert after is not None
        canvas = after
    assert DECODER.decide(canvas, proposal([7, 8, 9, 9], [3.0] * 4)).commit == [7, 8, 9, 9]


def test_an_accepted_stop_token_does_not_end_a_canvas_early() -> None:
    decision = DECODER.decide(DECODER.open(4, PLACE), proposal([1, 2, 3, 4], [0.0] * 4))
    assert stop_early(decision, (1,)) is decision


def test_the_rest_of_a_canvas_moves_up_and_random_tokens_enter() -> None:
    after = DECODER.decide(DECODER.open(4, PLACE), proposal([1, 2, 3, 4], [0.0, 0.0, 9.0, 9.0])).canvas
    assert after is not None
    moved = DECODER.advance(after, 3)
    assert moved is not None
    assert moved.soft is not None
    assert len(moved.token_ids) == 4
    assert moved.start == 13
    assert moved.token_ids[0] == 4
    assert moved.soft.tolist() == [[6.0, 7.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    assert moved.is_masked.tolist() == [True] * 4
    assert DECODER.advance(after, 4) is None


def test_the_temperature_falls_linearly() -> None:
    found = [step_temperature(PARAMS, step) for step in range(5)]
    assert found == pytest.approx([0.8, 0.72, 0.64, 0.56, 0.48])
