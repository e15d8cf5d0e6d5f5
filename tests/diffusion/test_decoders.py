"""Decoders on scripted proposals: what commits, what stays, what changes."""

from __future__ import annotations

import torch

from quicksilver.core import DecoderName, DecoderParams, FinishReason
from quicksilver.diffusion.confidence import Confidence
from quicksilver.diffusion.decoder import Canvas, Decision
from quicksilver.diffusion.edit import Edit, left_neighbours
from quicksilver.diffusion.finish import end_early, take
from quicksilver.diffusion.sample import Proposal
from quicksilver.diffusion.verify import Verify, agreement


def proposal(tokens: list[int], confidence: list[float]) -> Proposal:
    return Proposal(
        torch.tensor(tokens), torch.tensor(confidence), torch.zeros(len(tokens)), torch.ones(len(tokens)) > 0
    )


def sure(tokens: list[int]) -> Proposal:
    return proposal(tokens, [0.99] * len(tokens))


def test_verify_commits_the_causal_token_then_what_was_confirmed_and_one_more() -> None:
    decoder = Verify(DecoderParams(canvas_len=4))
    drafted = decoder.decide(decoder.open(room=100), sure([10, 11, 12, 13]))
    assert drafted.commit == [10]
    assert drafted.canvas is not None
    assert decoder.tail(drafted.canvas).token_ids == (11, 12, 13)
    assert decoder.tail(drafted.canvas).is_causal
    verified = decoder.decide(drafted.canvas, sure([11, 12, 99, 50]))
    assert (verified.commit, verified.num_accepted) == ([11, 12, 99], 2)
    assert verified.canvas is None


def test_verify_with_everything_right_gains_a_token_for_free() -> None:
    decoder = Verify(DecoderParams(canvas_len=3))
    drafted = decoder.decide(decoder.open(100), sure([1, 2, 3]))
    assert drafted.canvas is not None
    assert decoder.decide(drafted.canvas, sure([2, 3, 4])).commit == [2, 3, 4]


def test_agreement_ends_at_the_first_difference() -> None:
    assert agreement([1, 2, 3], [1, 2]) == 2
    assert agreement([1, 9, 3, 4], [1, 2, 3]) == 1
    assert agreement([1], []) == 0


def test_confidence_commits_the_leading_run_and_keeps_what_is_sure_further_right() -> None:
    decoder = Confidence(DecoderParams(name=DecoderName.CONFIDENCE, canvas_len=5, threshold=0.9))
    first = decoder.decide(decoder.open(100), proposal([1, 2, 3, 4, 5], [0.2, 0.95, 0.3, 0.95, 0.1]))
    assert first.commit == [1, 2]
    assert first.canvas is not None
    assert first.canvas.is_masked.tolist() == [True, False, True, True, True]
    assert decoder.tail(first.canvas).token_ids[1] == 4
    second = decoder.decide(first.canvas, proposal([3, 99, 6, 7, 8], [0.5, 0.99, 0.2, 0.2, 0.2]))
    assert second.commit == [3, 4]


def test_edit_changes_its_mind_until_nothing_changes() -> None:
    decoder = Edit(DecoderParams(name=DecoderName.EDIT, canvas_len=3, threshold=0.5, edit_threshold=0.9))
    one = decoder.decide(decoder.open(100), proposal([1, 2, 3], [0.9, 0.9, 0.1]))
    assert one.commit == []
    assert one.canvas is not None
    two = decoder.decide(one.canvas, proposal([1, 7, 3], [0.9, 0.95, 0.9]))
    assert two.canvas is not None
    assert two.canvas.token_ids.tolist() == [1, 7, 3]
    three = decoder.decide(two.canvas, proposal([1, 8, 3], [0.9, 0.8, 0.9]))
    assert three.commit == [1, 7, 3]


def test_edit_ends_even_if_the_model_never_settles() -> None:
    decoder = Edit(DecoderParams(name=DecoderName.EDIT, canvas_len=4, threshold=0.5, edit_threshold=0.5, edit_passes=5))
    canvas: Canvas | None = decoder.open(100)
    for step in range(100):
        assert canvas is not None
        decision = decoder.decide(canvas, sure([step, step + 1, step + 2, step + 3]))
        canvas = decision.canvas
        if decision.commit:
            break
    assert len(decision.commit) == 4
    assert step <= 6


def test_the_stutter_guard_knows_the_left_neighbour() -> None:
    canvas = Canvas(torch.tensor([5, 6, 7]), torch.tensor([False, True, False]), torch.ones(3))
    assert left_neighbours(Edit(DecoderParams()).tail(canvas), last_committed=4) == [4, 5, -1]


def test_take_stops_before_a_stop_token_or_at_the_end_of_the_room() -> None:
    assert take([1, 2, 3], stop_ids=[3], room=9) == ([1, 2], FinishReason.STOP)
    assert take([1, 2, 3], stop_ids=[], room=2) == ([1, 2], FinishReason.LENGTH)
    assert take([1, 2, 3], stop_ids=[3], room=2) == ([1, 2], FinishReason.STOP)
    assert take([1, 2], stop_ids=[3], room=5) == ([1, 2], None)


def test_a_stop_token_without_a_mask_before_it_ends_an_unfinished_canvas() -> None:
    canvas = Canvas(torch.tensor([5, 9, 7]), torch.tensor([False, False, True]), torch.ones(3))
    assert end_early(Decision([], canvas), stop_ids=[9]).commit == [5, 9]
    hidden = Canvas(torch.tensor([5, 6, 9]), torch.tensor([False, True, False]), torch.ones(3))
    assert end_early(Decision([], hidden), stop_ids=[9]).commit == []
    assert end_early(Decision([1], canvas), stop_ids=[9]).commit == [1]
